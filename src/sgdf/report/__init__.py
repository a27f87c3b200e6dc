"""Comparisons for people to read: tables in the terminal, and one page of tables and charts."""
