"""Puzzles whose right answer needs long working, and worked solutions with habits that training can change."""
