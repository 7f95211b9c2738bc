"""Committees as records of a model file, and back: the experts, and what updates of them need."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparsegp import linalg, parallel
from sparsegp.committee.aggregation import Aggregation, BaseCount, Weighting
from sparsegp.committee.committee import Committee
from sparsegp.committee.experts import DenseSpec, ExpertSpec, GaussianExpert, Process, Recipe, SparseSpec
from sparsegp.committee.influence import InfluenceBound
from sparsegp.committee.learned_noise_experts import (
    LearnedNoiseExpert,
    LearnedNoiseRecipe,
    LearnedNoiseSpec,
    spec_approximation,
)
from sparsegp.committee.split import Nearest
from sparsegp.core import approximations
from sparsegp.core.approximations import Family
from sparsegp.core.block import MemoryRows
from sparsegp.core.dense import ExactPosterior
from sparsegp.errors import ModelFileError
from sparsegp.estimators import record_parts as parts
from sparsegp.estimators.record_parts import State
from sparsegp.files import kernel_records, schema
from sparsegp.files.kernel_records import Classes
from sparsegp.fit.committee_model import CommitteeModel, Member, Members
from sparsegp.fit.kept import Kept, KeptRows
from sparsegp.fit.scaling import Scaling
from sparsegp.kernels import Kernel

WEIGHTINGS = {
    Weighting.ONE: "one",
    Weighting.ONE_OVER_EXPERTS: "one_over_experts",
    Weighting.ENTROPY: "entropy",
    Weighting.PRECISION: "squared_precision",
}
BASE_COUNTS = {BaseCount.ONCE: "once", BaseCount.PER_WEIGHT: "per_weight"}


def describe(model: CommitteeModel) -> State:
    committee = model.committee
    f, *others = committee.processes
    noise = others[0] if others else None
    rule, nearest = committee.rule, committee.nearest
    record = schema.Committee(
        aggregation=schema.Aggregation(
            name=rule.name,
            weighting=WEIGHTINGS[rule.weighting],
            base_count=BASE_COUNTS[rule.base_count],
            communicates=rule.communicates,
            reference=rule.reference,
        ),
        experts=[_describe_expert(expert) for expert in committee.experts],
        common=None if committee.common is None else _describe_expert(committee.common),
        noise_mean=None if noise is None else float(noise.mean),
        skip_tolerance=float(committee.tolerance),
        nearest=None if nearest is None else _described_nearest(nearest),
        n_jobs=committee.n_jobs,
        membership=None if model.members is None else _describe_members(model.members),
    )
    stream = None
    if model.innovations.rows and model.members is not None:
        n_rows = model.members.n_rows
        stream = parts.describe_stream(model.innovations, model.level, n_rows, n_rows)
    return {
        "kernel": kernel_records.describe(f.kernel),
        "noise_kernel": None if noise is None else kernel_records.describe(noise.kernel),
        "committee": record,
        "mean_noise_var": float(model.noise_var),
        "known_noise": model.known_noise,
        "stream": stream,
    }


def _described_nearest(nearest: Nearest) -> schema.NearestExperts:
    centres, metric = parts.to_numpy(nearest.centres), parts.to_numpy(nearest.metric)
    return schema.NearestExperts(most=nearest.most, centres=centres, metric=metric)


def _restored_nearest(record: schema.NearestExperts) -> Nearest:
    return Nearest(record.most, parts.to_tensor(record.centres), parts.to_tensor(record.metric))


def restore(record: schema.Model, kernel: Kernel, scaling: Scaling, classes: Classes) -> CommitteeModel:
    found = parts.need(record.committee, "its experts")
    noise_kernel = None if record.noise_kernel is None else kernel_records.restore(record.noise_kernel, classes)
    members: tuple[Process, ...] = (Process(kernel),)
    if noise_kernel is not None:
        members = (*members, Process(noise_kernel, parts.need(found.noise_mean, "the mean of the noise")))
    rule = found.aggregation
    committee = Committee(
        Aggregation(
            rule.name,
            parts.key_of(WEIGHTINGS, rule.weighting),
            parts.key_of(BASE_COUNTS, rule.base_count),
            rule.communicates,
            rule.reference,
        ),
        members,
        [_restore_expert(expert, kernel, noise_kernel) for expert in found.experts],
        None if found.common is None else _restore_expert(found.common, kernel, noise_kernel),
        found.skip_tolerance,
        found.n_jobs,
        None if found.nearest is None else _restored_nearest(found.nearest),
    )
    held = None if found.membership is None else _restore_members(found.membership, committee)
    noise_var = parts.mean_noise(record, scaling)
    model = CommitteeModel(committee, noise_var, record.log_evidence, bool(record.known_noise), held)
    if record.stream is None:
        return model
    innovations, level = parts.restore_innovations(record.stream), parts.restore_level(record.stream)
    return replace(model, innovations=innovations, level=level)


def _describe_expert(expert: Any) -> schema.Expert:
    """Its kernels are those that all experts share."""
    posterior = expert.posterior
    row = approximations.get("exact") if isinstance(posterior, ExactPosterior) else posterior.prior.approx
    if isinstance(expert, GaussianExpert):
        return schema.Expert(
            posterior=parts.describe_posterior(posterior, row, expert.blocks),
            influence=_describe_influence(expert.bound),
        )
    of_f, of_g = expert.bounds
    return schema.Expert(
        posterior=parts.describe_posterior(posterior, row, None),
        influence=_describe_influence(of_f),
        noise=parts.describe_noise(expert.process),
        noise_influence=_describe_influence(of_g),
    )


def _restore_expert(record: schema.Expert, kernel: Kernel, noise_kernel: Kernel | None) -> Any:
    with parallel.single(), linalg.flushed_denormals():  # as `shared_learning.train`, to the last digit
        posterior = parts.restore_posterior(record.posterior, kernel)
    influence = _restore_influence(record.influence)
    if record.noise is not None:
        process = parts.restore_noise(record.noise, parts.need(noise_kernel, "the kernel of the noise"))
        return LearnedNoiseExpert(posterior, process, (influence, _restore_influence(record.noise_influence)))
    return GaussianExpert(posterior, influence, parts.restore_blocking(record.posterior.partition))


def _describe_influence(bound: InfluenceBound | None) -> schema.InfluenceBound | None:
    if bound is None:
        return None
    return schema.InfluenceBound(
        box_lower=parts.to_numpy(bound.lower),
        box_upper=parts.to_numpy(bound.upper),
        variance_gain=float(bound.var_gain),
        mean_gain=float(bound.mean_gain),
        common_covariance=None if bound.common_covariance is None else parts.to_numpy(bound.common_covariance),
    )


def _restore_influence(record: schema.InfluenceBound | None) -> InfluenceBound | None:
    if record is None:
        return None
    common = None if record.common_covariance is None else parts.to_tensor(record.common_covariance)
    lower, upper = parts.to_tensor(record.box_lower), parts.to_tensor(record.box_upper)
    return InfluenceBound(lower, upper, record.variance_gain, record.mean_gain, common)


def _describe_members(members: Members) -> schema.Membership:
    recipe = members.recipe
    given: State = {}
    if isinstance(recipe, LearnedNoiseRecipe):
        least, largest = recipe.noise_limits
        given = {"n_noise_inducing": recipe.n_noise_inducing, "least_noise_var": least, "largest_noise_var": largest}
    else:
        given = {"metric": parts.to_numpy(recipe.metric)}
    return schema.Membership(
        approximation=parts.describe_approximation(recipe.approx),
        members=[_describe_member(member) for member in members.others],
        common=None if members.common is None else _describe_member(members.common),
        partition=None if members.blocking is None else parts.describe_partition(members.blocking),
        most_asked=members.most_asked,
        inducing=recipe.inducing,
        n_inducing=recipe.n_inducing,
        **given,
    )


def _restore_members(record: schema.Membership, committee: Committee) -> Members:
    """The experts are those of the committee, in the order of the members that have rows."""
    f, *noise = (process.kernel for process in committee.processes)
    row, rng = parts.restore_approximation(record.approximation), np.random.default_rng(0)
    recipe: Recipe | LearnedNoiseRecipe
    if noise:
        limits = (
            parts.need(record.least_noise_var, "its least noise"),
            parts.need(record.largest_noise_var, "its largest noise"),
        )
        n_noise = parts.need(record.n_noise_inducing, "the number of inducing inputs of its noise")
        recipe = LearnedNoiseRecipe(row, record.n_inducing, n_noise, record.inducing, f, noise[0], limits, rng)
    else:
        metric = parts.to_tensor(parts.need(record.metric, "the metric of its blocks"))
        recipe = Recipe(row, record.n_inducing, record.inducing, f, metric, rng)
    experts = iter(committee.experts)
    others = []
    for found in record.members:
        spec = _restore_spec(found, recipe)
        expert = next(experts, None) if len(spec.block) else None
        if len(spec.block) and expert is None:
            raise ModelFileError("there are more members with rows than experts")
        others.append(Member(spec, expert, found.log_evidence))
    common = None
    if record.common is not None:
        common = Member(_restore_spec(record.common, recipe), committee.common, record.common.log_evidence)
    return Members(recipe, tuple(others), common, parts.restore_blocking(record.partition), record.most_asked)


def _describe_member(member: Member) -> schema.Member:
    spec, given = member.spec, dict[str, Any]()
    if isinstance(spec, LearnedNoiseSpec):
        given = {"inducing": parts.to_numpy(spec.inducing), "noise_inducing": parts.to_numpy(spec.noise_inducing)}
    elif isinstance(spec, SparseSpec):
        blocks = None if spec.blocks is None else parts.describe_partition(spec.blocks)
        given = {"inducing": parts.to_numpy(spec.inducing), "partition": blocks}
    rows = parts.describe_rows(KeptRows((Kept(spec.block, torch.arange(len(spec.block))),)))
    return schema.Member(rows=rows, log_evidence=float(member.log_evidence), **given)


def _restore_spec(record: schema.Member, recipe: Recipe | LearnedNoiseRecipe) -> ExpertSpec:
    block = parts.restore_rows(record.rows).block(0)
    if isinstance(recipe, LearnedNoiseRecipe):
        inducing = parts.to_tensor(parts.need(record.inducing, "inducing inputs"))
        of_g = parts.to_tensor(parts.need(record.noise_inducing, "inducing inputs of its noise"))
        empty = MemoryRows(block.take(slice(0, 0)))
        return LearnedNoiseSpec(
            empty, spec_approximation(recipe.approx), inducing, of_g, recipe.noise_limits
        ).with_rows(block)
    if recipe.approx.family is not Family.INDUCING:
        return DenseSpec(block)
    inducing, blocks = (
        parts.to_tensor(parts.need(record.inducing, "inducing inputs")),
        parts.restore_blocking(record.partition),
    )
    return SparseSpec(MemoryRows(block), recipe.approx, inducing, blocks).with_rows(block)
