"""Puzzles that take many steps to solve, and worked solutions to them, with habits that training can change."""
