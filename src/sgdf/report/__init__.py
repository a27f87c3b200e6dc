"""Comparisons people can see: tables in the terminal, and one page with tables and charts."""
