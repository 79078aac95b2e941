"""A site's tasks, done in this process and with fedclass's own code alone.

Flower's own executor unpacks the app that a run brings along, and imports it: whoever can start a run could then read
every image of every site. So `fedclass site run` starts Flower's SuperNode with `--isolation process`, in which it
executes nothing, and takes its tasks itself. Of the app it reads one file, to refuse what is not fedclass's; nothing of
it is written to the disk, imported or run, whatever Flower delivers.

What is imported from Flower here is not its public interface. Another version is refused (`check_flower`).
"""

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import TracebackType
from typing import Protocol, Self

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_to_proto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from fedclass.deploy.app import app_flaw
from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError, ConfigError

FLOWER = "1.41."  # the version whose SuperNode was looked at
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
LOOK = 0.25  # seconds between two looks for a task
BEAT = 10.0  # seconds between two signs of life; after 30 Flower takes the task for lost
ENDING = 5.0  # seconds that a task which is under way gets when the site ends
MOST_RUNS = 1000  # whose refusal is remembered, so that it is said once


class Answer(Protocol):
    def __call__(self, frame: Frame, *, run: int) -> Frame: ...


def check_flower() -> None:
    if not (found := version("flwr")).startswith(FLOWER):
        raise ConfigError(
            f"Flower {found} is installed, and a site runs with {FLOWER}* only, whose SuperNode is known to execute "
            f"nothing by itself; pip install 'flwr=={FLOWER}*'"
        )


class Executor:
    """Does the tasks of the SuperNode on `port`, one after the other.

    Each task has a thread of its own, because its message may never arrive whole: a SuperNode keeps the task of a
    message that it was receiving when the run ended, and whoever has taken it waits for hours.

    answer: to a frame of a run.  broken: set if a task was taken and could not be answered at all: the SuperNode would
    wait for an answer for ever, and has to be started again.
    """

    def __init__(self, answer: Answer, secret: bytes, say: Callable[[str], None]) -> None:
        self.answer, self.say = answer, say
        self.port: int | None = None
        self.broken = threading.Event()
        self._over, self._thread = threading.Event(), threading.Thread(target=self._work, daemon=True)
        self._one_by_one = threading.Lock()
        self._refused = dict[int, None]()
        self._door: tuple[int, RuntimeHttpClient] | None = None
        self._signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(ENDING)
        self._one_by_one.acquire(timeout=ENDING)  # and never released: no other task begins
        if self._door is not None:
            self._door[1].close()

    def _work(self) -> None:
        while not self._over.is_set():
            with self._failing():
                if self.port is not None and (found := self._acquire(self.port)).token:
                    threading.Thread(target=self._do, args=(self.port, found), daemon=True).start()
                    continue
            time.sleep(1 if self.broken.is_set() else LOOK)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever happens to one task, the next must find someone to do it."""
        try:
            yield
        except httpx.TransportError:
            pass  # the SuperNode is not there yet, or not any more
        except ObjectPullError:
            self.say("a message never arrived whole: the run that sent it ended meanwhile")
        except Exception:
            with contextlib.suppress(Exception):
                self.say(f"a task of Flower's could not be done\n{traceback.format_exc()}")
            self.broken.set()

    def _acquire(self, port: int) -> AcquireTaskResponse:
        if self._door is None or self._door[0] != port:
            if self._door is not None:
                self._door[1].close()
            self._door = port, _client(port, self._signed)
        return self._door[1].AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))

    def _do(self, port: int, found: AcquireTaskResponse) -> None:
        with self._failing(), _client(port, RuntimeTokenHttpInterceptor(found.token)) as client, _alive(client):
            message, context, run, app = pull_task_input(client)
            with self._one_by_one:
                try:
                    reply = self._reply(message, run.run_id, found.task.type, app.content)
                except Exception as error:  # a lack of memory, for example
                    self.say(traceback.format_exc())
                    failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"failed ({type(error).__name__})")
                    reply = Message(failed, reply_to=message)
                try:
                    push_message(client, reply, context)
                    done = PushTaskOutputRequest(context=context_to_proto(context), sub_status=SubStatus.COMPLETED)
                    client.PushTaskOutput(done)
                except httpx.HTTPStatusError as error:
                    if error.response.status_code != httpx.codes.UNAUTHORIZED:
                        raise
                    self.say("the answer came too late: Flower had given this site up by then")

    def _reply(self, message: Message, run: int, kind: str, app: bytes) -> Message:
        flaw = app_flaw(app) if kind == TaskType.CLIENT_APP else f"it is an app of another kind ({kind})"
        if flaw is not None:
            self._say_refused(run, flaw)
            reason = f"this site runs fedclass's own app only, as `fedclass deploy init` writes it; {flaw}"
            return Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=message)
        try:
            if not message.has_content():
                raise ClientError("not a message of fedclass: it has no content")
            frame = Frame.from_record(message.content)
        except ClientError as error:
            self._say_refused(run, str(error))
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
        return Message(self.answer(frame, run=run).to_record(), reply_to=message)

    def _say_refused(self, run: int, reason: str) -> None:
        if run not in self._refused:
            self._refused[run] = None
            for old in list(self._refused)[:-MOST_RUNS]:
                del self._refused[old]
            self.say(f"run {run}: REFUSED, nothing of it was executed: {reason}")


def _client(port: int, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
    interceptors = [RuntimeVersionHttpInterceptor(component_name="fedclass site"), interceptor]
    return RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, interceptors)


@contextlib.contextmanager
def _alive(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell the SuperNode that its task is being done, until it is."""
    done = threading.Event()

    def beat() -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):  # a dead SuperNode shows when the answer is handed over
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            if done.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
