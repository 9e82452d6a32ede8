import sys


def main() -> int:
    """What `python -m runner` and the installed command start."""
    from runner import interrupts

    interrupts.leave_at_once()
    from runner import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
