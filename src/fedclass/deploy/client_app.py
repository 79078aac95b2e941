"""Flower's entry point of a site. Imports little: Flower starts a process for every message."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclass.deploy.request_handler import answer
from fedclass.engines.flower.frames import Frame

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def respond(message: Message, context: Context) -> Message:
    reply = answer(Frame.from_record(message.content), context.node_config)
    return Message(reply.to_record(), reply_to=message)
