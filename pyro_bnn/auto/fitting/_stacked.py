"""One model for all members of an ensemble of points. Its log-density is their sum, so gradients are the same."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from ..._core.copies import copied
from ..._core.functional import buffer_to_parameter, present_values, vectorised
from ...modelling.likelihoods import Likelihood
from ...modelling.model import SITE_PREFIX, BayesianModel, random_paths
from ...modelling.priors import WeightPrior
from ...scores.uncertainty import Accumulator

MEMBER = f"{SITE_PREFIX}.member"
"""Prefix of the sites of the stacked model, in place of the prefix of the sites of a member."""


class StackedNetwork(nn.Module):
    """Runs K networks with the weights ``{path: shape (K, *parameter)}``. The output has shape (N, K, ...)."""

    def __init__(self, member: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.member = member
        parameters = {id(value): nn.Parameter(value) for value in weights.values()}
        for path, value in weights.items():
            buffer_to_parameter(member, path, parameters[id(value)])
        self.paths = tuple(weights)

    def weights(self) -> dict[str, Tensor]:
        """Return the present weights of all members, ``{path: shape (K, *parameter)}``."""
        return present_values(self.member, self.paths)

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        return vectorised(self.member, self.weights(), named or arguments).transpose(0, 1)


class StackedPrior(WeightPrior):
    """The same prior for each member. The prior of a member is that of `model`."""

    def __init__(self, model: BayesianModel) -> None:
        self._model = model

    def given(
        self, values: Mapping[str, Tensor], name: str, parameter: Tensor, module: nn.Module
    ) -> TorchDistributionMixin:
        return self._model.prior_of(site_of_member(name)).expand([len(parameter)]).to_event(1)


class StackedLikelihood(Likelihood[Any]):
    """A likelihood for outputs of shape (N, K, ...). All members observe the same targets, shape (N, ...).

    The likelihood `of_member` takes the axis N for draws and the axis K for rows; targets broadcast over members.
    """

    def __init__(self, of_member: Likelihood[Any]) -> None:
        super().__init__()
        self.of_member = of_member

    def forward(self, output: Tensor) -> TorchDistributionMixin:
        observation: TorchDistributionMixin = self.of_member(output)
        return observation

    def check_output(self, output: Tensor) -> None:
        self.of_member.check_output(output)

    def check_values(self, output: Tensor, y: Tensor) -> None:
        self.of_member.check_values(output[:, 0], y)

    def check_targets(self, output: Tensor, y: Tensor) -> None:
        self.of_member.check_targets(output[:, 0], y)

    def as_targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return self.of_member.as_targets(y, dtype).unsqueeze(1)

    def target_shape(self, observed: Sequence[int]) -> tuple[int, ...]:
        return self.of_member.target_shape((observed[0], *observed[2:]))

    def fit_weights(self, y: Tensor, dtype: torch.dtype) -> Tensor | None:
        weights = self.of_member.fit_weights(y, dtype)
        return None if weights is None else weights.unsqueeze(1)

    def accumulator(self) -> Accumulator[Any]:
        return self.of_member.accumulator()


def site_of_member(name: str) -> str:
    """Return the name that a site of the stacked model has in the model of a member."""
    return SITE_PREFIX + name.removeprefix(MEMBER)


def stacked_model(model: BayesianModel, points: Sequence[Mapping[str, Tensor]]) -> BayesianModel:
    """Return the model of all members, given the weights of each as ``{site: shape (*parameter)}``."""
    stacks = {name: torch.stack([point[name] for point in points]) for name in model.site_names}
    weights = {path: stacks[name] for name, paths in model.parameter_paths.items() for path in paths}
    assert weights.keys() == random_paths(model)
    return BayesianModel(
        StackedNetwork(copied(model.network), weights),
        prior=StackedPrior(model),
        likelihood=StackedLikelihood(model.likelihood),
        num_data=model.num_data,
        where=lambda name, parameter, module: parameter.requires_grad,
    )
