"""Lets `python -m yoasovi.cli` run the command line."""

from yoasovi.cli import main

main()
