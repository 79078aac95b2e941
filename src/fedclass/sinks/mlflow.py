"""MLflow: the server in MLFLOW_TRACKING_URI, or else RUN/mlflow/mlflow.db."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedclass.sinks.base import Start, numbers

# A user's own values take precedence. An unreachable server should delay training by seconds, not by many minutes.
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
LONGEST = 6000  # characters that MLflow allows in a parameter


class MLflow:
    def __init__(self, root: Path) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        import alembic  # noqa: F401  (MLflow's lean package loads both only when it opens a database)
        import sqlalchemy  # noqa: F401
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self.folder = (root / "mlflow").resolve()
        self._client_of, self._metric, self._param = MlflowClient, Metric, Param
        self._client: Any = None
        self._run = ""
        self._logged: dict[str, int] = {}  # the last step of each metric when the run was resumed

    def begin(self, start: Start) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._client_of(server or self._own_database())
        experiment = self._experiment(None if server else (self.folder / "artifacts").as_uri())
        found = self._client.search_runs([experiment], f"tags.fedclass_run = '{start.identity}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            histories = {name: self._client.get_metric_history(self._run, name) for name in found[0].data.metrics}
            self._logged = {name: max(point.step for point in history) for name, history in histories.items()}
        else:
            tags = {"fedclass_run": start.identity}
            self._run = self._client.create_run(experiment, run_name=start.name, tags=tags).info.run_id
        parameters = [self._param(key, str(value)[:LONGEST]) for key, value in start.parameters.items()]
        self._client.log_batch(self._run, params=parameters)

    def _own_database(self) -> str:
        """Making its tables takes seconds. A run stopped meanwhile leaves no incomplete database under this name."""
        path, part = self.folder / "mlflow.db", self.folder / "mlflow.db.part"
        if not path.exists():
            self.folder.mkdir(exist_ok=True)
            part.unlink(missing_ok=True)
            self._client_of(_sqlite(part))
            part.replace(path)
        return _sqlite(path)

    def _experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedclass")
        known = self._client.get_experiment_by_name(name)
        found: str = known.experiment_id if known else self._client.create_experiment(name, artifacts)
        return found

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        new = {name: value for name, value in values.items() if step > self._logged.get(name, -1)}
        self._client.log_batch(self._run, [self._metric(name, value, now, step) for name, value in new.items()])

    def finish(self, step: int, summary: Mapping[str, Any]) -> None:
        self.log(step, numbers(summary))
        for key in ("weights_sha256", "official_data"):
            self._client.set_tag(self._run, key, str(summary[key]))

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path.as_posix()}"
