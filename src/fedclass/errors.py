"""Everything that fedclass raises on purpose.

    FedclassError
    ├── ConfigError     a recipe, an option or a name is wrong; nothing was started
    ├── DataError       files are missing, damaged, or do not hold what they should
    ├── RunError        a run directory cannot be written, or is not one
    ├── RoundError      a round could not be completed (too few usable updates)
    ├── ClientError     a client's work failed, in a method or model of the user's or for lack of memory
    └── HookError       a method's hook failed at the server, or in an evaluation

A message says where, what, and what to do next. The command line prints it without a traceback and exits with
`exit_code`.
"""

EXTRA = (
    "in a clone of fedclass: pip install -c constraints.txt '.[{}]'"  # how to have an extra; there is no release yet
)


class FedclassError(Exception):
    exit_code = 1


class ConfigError(FedclassError):
    exit_code = 2


class DataError(FedclassError):
    exit_code = 3


class RunError(FedclassError):
    exit_code = 4


class RoundError(FedclassError):
    exit_code = 5


class ClientError(FedclassError):
    exit_code = 1


class HookError(FedclassError):
    exit_code = 1
