"""Gradients of single images. They never leave a client: methods sum them, or use their norms."""

from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedclass.methods.base import Batch
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Tensors


def trained(model: IncrementalModel) -> Tensors:
    """The model's trained parameters by name, detached from the graph."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def sample_gradients(model: IncrementalModel, weights: Tensors, batch: Batch) -> Tensors:
    """(B, ...): d log p(label | image) / d w of each image, for each of `weights`, which stand in for the model's."""

    def log_likelihood(weights: Tensors, image: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, dict(weights), (image[None],))
        return logits.log_softmax(dim=1)[0].gather(0, label[None])[0]

    found: Tensors = vmap(grad(log_likelihood), in_dims=(None, 0, 0))(weights, batch.images, batch.labels)
    return found
