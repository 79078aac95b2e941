"""python -m fedclass"""

from fedclass.cli import main

if __name__ == "__main__":  # processes started by a run import this module too
    main()
