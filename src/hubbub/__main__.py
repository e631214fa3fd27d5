"""``python -m hubbub``."""

import sys

if __name__ == "__main__":
    # Python looks for modules in the current folder first; who stands in a stranger's run must not run what lies there.
    if not sys.flags.safe_path:
        del sys.path[0]

    from hubbub.cli import main

    main()
