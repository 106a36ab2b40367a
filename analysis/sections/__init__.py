"""Sections of the report of task=reproduce. Each module makes the section of one figure or table of a paper, only from
files that runs wrote. The arguments of its `section`: title; runs: label -> folder of a run; published: the published
numbers; folder: where to draw figures."""
