"""The command's start: `python -m runner`, and the installed `samestep`. Little is imported before Ctrl-C and the channels are seen to."""

import sys


def main() -> int:
    """What `python -m runner` and the installed command start."""
    from runner import channels, interrupts

    interrupts.leave_at_once()
    channels.open_all()
    from runner import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
