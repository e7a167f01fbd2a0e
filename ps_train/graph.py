"""Builds a task's graph from the user's model; runs nothing.

    ops = graph.build_train(context, config, model)        # TrainOps: tensors and ops, nothing has run
    ops = graph.build_eval(config, model)                  # EvalOps: one process, no devices

A worker's graph, in this order: placement scope -> global step -> `input_fn` on the worker -> `model_fn` ->
gradients -> update rule. Every worker builds the same variables in the same order, which is what places them alike.
"""

import functools
from typing import Any, NamedTuple

from ps_train import following, placement, restoring
from ps_train.compat import tf, tf1
from ps_train.config import BUILTIN_MODEL
from ps_train.errors import ModelError
from ps_train.inputs import HAS_DATA, build_input, count_examples
from ps_train.logs import log
from ps_train.model import (
    InputContext,
    ModeKeys,
    WatchedContext,
    blaming_result,
    call_model_fn,
    mentions,
    worker_seed,
)
from ps_train.model.spec import describe
from ps_train.params import WatchedParams
from ps_train.sizes import check_sizes
from ps_train.towers import mean_gradients, tower, tower_devices
from ps_train.updates import DISTRIBUTED, SYNC_OPTIMIZERS, rules, stale
from ps_train.updates.allreduce import Agreement
from ps_train.updates.lead import Lead
from ps_train.work import READERS, Work

INPUT = "ps_train/input"
NOT_SHARDED = (
    "input: every %s reads all of the data, as input_fn has read neither context.num_shards nor context.shard_index. "
    "For a part each: data.shard(context.num_shards, context.shard_index), or a helper of ps_train.data"
)


class TrainOps(NamedTuple):
    """What a worker runs each step, and what its session needs.

    Attributes:
      graph: not finalized yet.
      step: op of one step: update, UPDATE_OPS.
      loss: scalar tensor.
      examples: int32 scalar, examples in this step.
      global_step: the variable.
      steps_seen: int64 scalars that a step fetches: "global_step", read after it, and in async those of `updates.stale.watch`.
      sync_optimizers: those whose rounds the session joins.
      hooks: the user's.
    """

    graph: object
    step: object
    loss: object
    examples: object
    global_step: object
    steps_seen: dict
    sync_optimizers: list
    hooks: list


class EvalOps(NamedTuple):
    """One pass over the evaluation data.

    Attributes:
      graph: not finalized yet.
      loss: scalar tensor of a batch.
      examples: int32 scalar.
      values: metric name -> value tensor.
      updates: list of ops that take in a batch.
      global_step: the variable.
      cardinality: int64 scalar, number of batches in the data, or a negative code of tf.data.
    """

    graph: object
    loss: object
    examples: object
    values: dict
    updates: list
    global_step: object
    cardinality: object


def build_train(context, config, model):
    """Builds a training graph.

    Args:
      context: TaskContext of this task.
      config: TrainConfig.
      model: Model.

    Returns:
      TrainOps.

    Raises:
      ModelError: anything that is wrong with the user's functions, or what they return.
    """
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(worker_seed(config.seed, context.replica))
        with placement.scope(context):
            global_step = tf1.train.get_or_create_global_step()
            _note_default_model(config)
            params = WatchedParams(config.model_params)
            devices = tower_devices(context)
            batches = [_build_batch(context, config, model, params, number) for number in range(len(devices))]
            has_data = tf1.get_collection(HAS_DATA)
            agreement = Agreement(context, tf.reduce_all(tf.stack(has_data))) if has_data else None
            towers: list[_Tower] = []
            for number, device in enumerate(devices):
                with tower(number, device):
                    towers.append(_build_tower(context, model, params, batches[number], towers))
            if context.is_chief:  # one for the job
                for line in params.unread(may_be_read=functools.partial(mentions, model)):
                    log.warning("%s", line)
            _collect_keras_updates(graph)
            spec, loss = towers[0].spec, _mean_loss(towers)
            with blaming_result(model, spec):
                train_op = _build_train_op(towers, context, global_step, loss)
            if context.max_lead is not None:
                train_op = Lead(context).follow(train_op)
            steps_seen = _see_steps(train_op, global_step, context)
            examples = tf.add_n([count_examples(one.features, config.batch_size) for one in towers])
            if agreement is not None:
                examples *= tf.cast(agreement.has_data, examples.dtype)
        check_sizes(graph)
        optimizers = list(tf1.get_collection(SYNC_OPTIMIZERS))
        hooks = list(spec.training_hooks or ())
        return TrainOps(graph, train_op, loss, examples, global_step, steps_seen, optimizers, hooks)


class _Tower(NamedTuple):
    """What the user's functions made for one tower.

    Attributes:
      spec: ModelSpec.
      features: of its batch.
      optimizer: the first tower's, by the job's rule; None: the model makes its own train_op.
      gradients: list of (gradient, variable), if there is an optimizer.
    """

    spec: Any
    features: Any
    optimizer: Any
    gradients: Any


def _build_batch(context, config, model, params, number):
    """(features, labels) of a tower, by number."""
    shard = context.replica * context.devices.towers + number
    num_shards = context.cluster.num_workers * context.devices.towers
    seed = worker_seed(config.seed, shard)
    work = Work(context, shard, config.seed) if context.input == "workqueue" else None
    where = WatchedContext(ModeKeys.TRAIN, config.batch_size, num_shards, shard, seed, params, work)
    shared_name = None
    if context.autotune or context.cluster.is_colocated:
        shared_name = f"{INPUT}_{number}" if number else INPUT
    device = context.worker_device + "/device:CPU:0"
    known = len(tf1.get_collection(READERS))

    def follow(dataset):
        return following.follow(dataset, tf1.get_collection(READERS)[known:])

    # A worker of an all-reduce that has no data cannot leave.
    _, batch = build_input(model, where, device, shared_name, context.is_all_reduced, follow)
    if context.is_chief and number == 0 and num_shards > 1 and not where.is_sharding_read:  # one for the job
        log.info(NOT_SHARDED, "worker" if context.devices.towers == 1 else "tower")
    return batch


def _build_tower(context, model, params, batch, before):
    features, labels = batch
    spec = call_model_fn(model, features, labels, ModeKeys.TRAIN, params)
    with blaming_result(model, spec):
        _check_graph(spec.loss)
        if spec.train_op is not None:
            if context.devices.towers > 1:
                raise ModelError(
                    "it makes its own train_op, and with --towers the mean of all towers' gradients is applied. Return "
                    "ModelSpec(loss=loss, optimizer=optimizer), or leave out --towers."
                )
            return _Tower(spec, features, None, None)
        optimizer = before[0].optimizer if before else rules.DistributedOptimizer(spec.optimizer)
        return _Tower(spec, features, optimizer, _compute_gradients(optimizer, spec.loss))


def _mean_loss(towers):
    losses = [tf.cast(one.spec.loss, tf.float32) for one in towers]
    return losses[0] if len(losses) == 1 else tf.add_n(losses) / len(losses)


def build_eval(config, model):
    """Builds an evaluation graph for one process; see `build_train` for arguments and errors.

    Returns:
      EvalOps.
    """
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(config.seed)
        global_step = tf1.train.get_or_create_global_step()
        _note_default_model(config)
        context = InputContext(ModeKeys.EVAL, config.batch_size, 1, 0, config.seed, config.model_params)
        dataset, (features, labels) = build_input(model, context, "/device:CPU:0")
        spec = call_model_fn(model, features, labels, ModeKeys.EVAL, config.model_params)
        with blaming_result(model, spec):
            _check_graph(spec.loss)
            metrics = dict(spec.metrics or {})
            if "loss" not in metrics:
                metrics["loss"] = tf1.metrics.mean(tf.cast(spec.loss, tf.float32))
            values = {name: tf.convert_to_tensor(value) for name, (value, _) in metrics.items()}
        updates = [update for _, update in metrics.values()]
        examples = count_examples(features, config.batch_size)
        cardinality = tf.data.experimental.cardinality(dataset)
        return EvalOps(graph, spec.loss, examples, values, updates, global_step, cardinality)


def _note_default_model(config):
    if config.model is None:
        tf1.add_to_collection(restoring.DEFAULT_MODEL, BUILTIN_MODEL)


def _compute_gradients(optimizer, loss):
    try:
        gradients = optimizer.compute_gradients(loss)
    except ValueError:
        if tf1.trainable_variables():
            raise
        raise ModelError(
            "the model has no trainable variable, so there is nothing to train. Make them in model_fn, "
            "such as with tf.compat.v1.get_variable or Keras layers."
        ) from None
    if all(gradient is None for gradient, _ in gradients):
        raise ModelError(
            "no variable gets a gradient: the loss does not depend on any trainable variable. Make it of the variables."
        )
    return gradients


def _build_train_op(towers, context, global_step, loss):
    spec, optimizer = towers[0].spec, towers[0].optimizer
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    if context.update == "sync" and not context.is_chief:
        # Moving averages change once a global step: by the chief's batch, whose gradient is in nearly every update.
        updates = []
    if optimizer is None:
        _check_train_op(spec.train_op, context)
        train_op = spec.train_op if isinstance(spec.train_op, tf.Operation) else spec.train_op.op
        return tf.group(train_op, *updates) if updates else train_op
    gradients = mean_gradients([one.gradients for one in towers])
    optimizer.note_loss(spec.loss if len(towers) == 1 else loss)
    with tf1.control_dependencies(updates):
        return optimizer.apply_gradients(gradients, global_step=global_step)


def _check_graph(loss):
    if loss.graph is not tf1.get_default_graph():
        raise ModelError("the loss is in another graph. Build the model in the default graph, and make none.")


def _see_steps(train_op, global_step, context):
    optimizers = tf1.get_collection(SYNC_OPTIMIZERS)
    if optimizers:
        return {"global_step": optimizers[-1].step_after}
    if context.update == "async" and not context.watches_staleness:
        return stale.watch(train_op, global_step, context)
    with tf1.control_dependencies([train_op]), tf1.device(global_step.device):
        return {"global_step": global_step.read_value()}


def _check_train_op(train_op, context):
    if not isinstance(getattr(train_op, "op", train_op), tf.Operation):
        raise ModelError(
            f"ModelSpec.train_op is {describe(train_op)}; an operation is expected, as "
            "ps_train.DistributedOptimizer(optimizer).minimize(loss, ...) returns it."
        )
    if tf1.get_collection(DISTRIBUTED):
        return
    reaching = {
        f"--update={context.update}": context.update != "async",
        "--local_steps": context.local_steps > 1,
        "--max_staleness": context.max_staleness is not None,
        "--scale_by_staleness": context.scale_by_staleness,
        "--scale_rate": context.scale_rate != "none",
    }
    given = [flag for flag, is_given in reaching.items() if is_given]
    if given:
        raise ModelError(
            f"its own train_op is by an optimizer that {given[0]} does not reach. Wrap it: "
            "ps_train.DistributedOptimizer(optimizer).minimize(loss, global_step=tf1.train.get_global_step())."
        )


def _collect_keras_updates(graph):
    """Adds the assignments that Keras 3 layers made (moving averages, seed states) to UPDATE_OPS.

    Keras 3 creates them in the graph and nothing runs them: it counts on eager execution or its own trainer.
    """
    known = set(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
    initializers = {variable.initializer for variable in tf1.global_variables()}
    for op in graph.get_operations():
        if op.type not in ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"):
            continue
        if op in initializers or op in known or not _is_made_by_keras(op):
            continue
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, op)


def _is_made_by_keras(op):
    return any("/keras/src/layers/" in frame.filename.replace("\\", "/") for frame in op.traceback)
