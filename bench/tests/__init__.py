"""Run with: python3 -m unittest discover -s bench/tests -t bench"""
