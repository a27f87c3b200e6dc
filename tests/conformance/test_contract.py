"""torch's optimizer contract, through the machinery of torch's own optimizer tests.

The infos of `infos.py` also go through torch's `test_optim.py` itself; that file is not in the
wheel, so the checks here are written from the contract's side: what a user of any torch
optimizer relies on, for every setting the infos name, by loop and foreach.
"""

import pickle
from copy import deepcopy

import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optims,
)
from torch.testing._internal.common_utils import TestCase, parametrize

from conformance.infos import OPTIMIZER_INFOS
from stepping import through_a_file

every_optimizer = optims(OPTIMIZER_INFOS, dtypes=[torch.float32])


def settings_of(info, device, dtype=torch.float32, skip=("differentiable",)):
    inputs = _get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info, skip=skip)
    return [optim_input.kwargs for optim_input in inputs]


class Problem:
    """Least squares in a weight and a bias, as torch's own tests use it."""

    def __init__(self, device, dtype=torch.float32, contiguous=True, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=dtype).to(device)

        weight, bias = normal(10, 5), normal(10)
        if not contiguous:
            weight, bias = normal(10, 5, 2)[..., 0], normal(10, 2)[..., 0]
        self.weight, self.bias, self.x = Parameter(weight), Parameter(bias), normal(5)

    @property
    def parameters(self):
        return [self.weight, self.bias]

    def loss(self):
        for p in self.parameters:
            p.grad = None
        loss = (self.weight.mv(self.x) + self.bias).square().sum()
        loss.backward()
        return loss

    def run(self, optimizer, steps, schedulers=()):
        for _ in range(steps):
            loss = optimizer.step(self.loss)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, ReduceLROnPlateau)
                scheduler.step(*([loss.item()] if plateau else []))
        return loss.item()


class TestContract(TestCase):
    @every_optimizer
    def test_bad_arguments_are_refused(self, device, dtype, optim_info):
        for case in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            params = case.optimizer_error_input.params
            kwargs = case.optimizer_error_input.kwargs
            is_warning = issubclass(case.error_type, Warning)
            expect = self.assertWarnsRegex if is_warning else self.assertRaisesRegex
            if case.error_on is OptimizerErrorEnum.STEP_ERROR:
                optimizer = optim_info.optim_cls(params, **kwargs)
                with expect(case.error_type, case.error_regex):
                    optimizer.step()
            else:
                with expect(case.error_type, case.error_regex):
                    optim_info.optim_cls(params, **kwargs)

    @parametrize("contiguous", [True, False])
    @every_optimizer
    def test_the_loss_goes_the_right_way(self, device, dtype, optim_info, contiguous):
        for kwargs in settings_of(optim_info, device):
            problem = Problem(device, contiguous=contiguous)
            optimizer = optim_info.optim_cls(problem.parameters, **kwargs)
            before, after = problem.loss().item(), problem.run(optimizer, 50)
            self.assertEqual(after > before, kwargs.get("maximize", False), msg=str(kwargs))

    @every_optimizer
    def test_schedulers_and_group_overrides(self, device, dtype, optim_info):
        for constructors in optim_info.scheduler_inputs:
            for seed in range(5):
                problem = Problem(device, seed=seed)
                groups = [{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.01}]
                optimizer = optim_info.optim_cls(groups)
                schedulers = [constructor(optimizer) for constructor in constructors]
                before = problem.loss().item()
                self.assertLess(problem.run(optimizer, 20, schedulers), before)

    @every_optimizer
    def test_every_setting_can_differ_between_groups(self, device, dtype, optim_info):
        """One optimizer with two groups is two optimizers with one group each."""
        for kwargs in settings_of(optim_info, device):
            together, apart = Problem(device), Problem(device)
            first, second = kwargs, {"lr": 3e-3, "weight_decay": 0.3}
            joint = optim_info.optim_cls(
                [
                    {"params": [together.weight], **first},
                    {"params": [together.bias], **second},
                ],
                lr=1e-28,
            )
            single = [
                optim_info.optim_cls([apart.weight], **first),
                optim_info.optim_cls([apart.bias], **second),
            ]
            for _ in range(5):
                together.loss()
                joint.step()
                apart.loss()
                for optimizer in single:
                    optimizer.step()
            self.assertEqual(together.parameters, apart.parameters, rtol=0, atol=0)

    @every_optimizer
    def test_a_group_added_later_is_trained(self, device, dtype, optim_info):
        problem = Problem(device)
        optimizer = optim_info.optim_cls([problem.weight], lr=1e-2)
        problem.run(optimizer, 2)
        optimizer.add_param_group({"params": [problem.bias], "lr": 1e-3})
        before = problem.bias.detach().clone()
        problem.run(optimizer, 2)
        self.assertNotEqual(before, problem.bias)
        with self.assertRaisesRegex(ValueError, "Invalid learning rate: -1"):
            optimizer.add_param_group({"params": [Parameter(torch.zeros(1))], "lr": -1})
        self.assertEqual(len(optimizer.param_groups), 2)

    @every_optimizer
    def test_a_tensor_as_lr(self, device, dtype, optim_info):
        for shape in ((), (1,), (1, 1)):
            for kwargs in settings_of(optim_info, device):
                number, tensor = Problem(device), Problem(device)
                plain = optim_info.optim_cls(number.parameters, **{**kwargs, "lr": 1e-3})
                lr = torch.full(shape, 1e-3)
                other = optim_info.optim_cls(tensor.parameters, **{**kwargs, "lr": lr})
                number.run(plain, 5), tensor.run(other, 5)
                self.assertEqual(number.parameters, tensor.parameters)
                self.assertEqual(lr, torch.full(shape, 1e-3), rtol=0, atol=0)

    @every_optimizer
    def test_foreach_is_the_loop(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            if optim_input.kwargs.get("eigenbasis"):
                continue  # the gradients are of rank one: rounding chooses the basis
            problems = [Problem(device, torch.float64) for _ in range(2)]
            for problem, foreach in zip(problems, (False, True), strict=True):
                optimizer = optim_info.optim_cls(
                    problem.parameters, foreach=foreach, **optim_input.kwargs
                )
                problem.run(optimizer, 20)
            self.assertEqual(problems[0].parameters, problems[1].parameters, rtol=1e-9, atol=1e-12)

    @every_optimizer
    def test_a_complex_parameter_is_a_pair_of_real_ones(self, device, dtype, optim_info):
        for kwargs in settings_of(optim_info, device):
            start = torch.randn(4, 3, dtype=torch.complex64, device=device)
            pair = Parameter(torch.view_as_real(start).clone())
            number = Parameter(start.clone())
            optimizers = [optim_info.optim_cls([p], **kwargs) for p in (number, pair)]
            for _ in range(3):
                number.grad = torch.randn_like(number)
                pair.grad = torch.view_as_real(number.grad).clone()
                for optimizer in optimizers:
                    optimizer.step()
            self.assertEqual(torch.view_as_real(number), pair, rtol=0, atol=0)

    @every_optimizer
    def test_gradients_are_never_changed(self, device, dtype, optim_info):
        for kwargs in settings_of(optim_info, device, skip=()):
            p = torch.randn(5, device=device)
            p.grad = torch.randn_like(p)
            before = p.grad.clone()
            optimizer = optim_info.optim_cls([p], **kwargs)
            for _ in range(2):
                optimizer.step()
            self.assertEqual(p.grad, before, rtol=0, atol=0)

    @every_optimizer
    def test_no_gradient_no_change_no_state(self, device, dtype, optim_info):
        for kwargs in settings_of(optim_info, device, skip=()):
            still, moving = torch.randn(3, device=device), torch.randn(3, device=device)
            before = still.clone()
            moving.grad = torch.ones_like(moving)
            optimizer = optim_info.optim_cls([still, moving], **kwargs)
            optimizer.step()
            self.assertEqual(still, before, rtol=0, atol=0)
            self.assertNotIn(still, optimizer.state)
            self.assertGreater(len(optimizer.state[moving]), 0)
            optim_info.optim_cls([still], **kwargs).step()  # a group without any gradient

    @every_optimizer
    def test_closures_hooks_and_zero_grad(self, device, dtype, optim_info):
        problem, calls = Problem(device), []
        optimizer = optim_info.optim_cls(problem.parameters, lr=1e-3)
        handles = [
            optimizer.register_step_pre_hook(lambda *_: calls.append("pre")),
            optimizer.register_step_post_hook(lambda *_: calls.append("post")),
            register_optimizer_step_pre_hook(lambda *_: calls.append("global pre")),
            register_optimizer_step_post_hook(lambda *_: calls.append("global post")),
        ]
        loss = optimizer.step(lambda: calls.append("closure") or problem.loss())
        self.assertTrue(loss.requires_grad)
        self.assertEqual(calls, ["global pre", "pre", "closure", "post", "global post"])
        self.assertIsNone(optimizer.step())
        for handle in handles:
            handle.remove()
        optimizer.step()
        self.assertEqual(len(calls), 9)

        optimizer.zero_grad(set_to_none=False)
        self.assertEqual(problem.weight.grad, torch.zeros(10, 5))
        optimizer.zero_grad()
        self.assertIsNone(problem.weight.grad)

    @every_optimizer
    def test_state_dict_continues_exactly(self, device, dtype, optim_info):
        """Saved to bytes, loaded with weights_only, named or not, by deepcopy or pickle."""
        for kwargs in settings_of(optim_info, device):
            for saved_named, loaded_named in ((False, False), (True, True), (True, False)):
                problem = Problem(device)
                optimizer = optim_info.optim_cls(named(problem, saved_named), **kwargs)
                problem.run(optimizer, 3)
                twin, expected = deepcopy(problem), deepcopy(optimizer.state_dict())
                loaded = optim_info.optim_cls(named(twin, loaded_named), **kwargs)
                loaded.load_state_dict(through_a_file(optimizer.state_dict()))
                self.assertEqual(optimizer.state_dict(), expected)  # saving changed nothing
                problem.run(optimizer, 3), twin.run(loaded, 3)
                self.assertEqual(problem.parameters, twin.parameters, rtol=0, atol=0)

    @every_optimizer
    def test_copies_are_complete_and_independent(self, device, dtype, optim_info):
        for copy in (deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
            problem = Problem(device)
            optimizer = optim_info.optim_cls(problem.parameters, lr=1e-3, weight_decay=0.1)
            problem.run(optimizer, 3)
            before = deepcopy(optimizer.state_dict())
            twin, other = copy((problem, optimizer))
            self.assertEqual(public(other), public(optimizer))
            twin.run(other, 3)
            self.assertEqual(optimizer.state_dict(), before)
            problem.run(optimizer, 3)
            self.assertEqual(problem.parameters, twin.parameters, rtol=0, atol=0)

    @every_optimizer
    def test_an_older_checkpoint_gets_the_defaults_it_lacks(self, device, dtype, optim_info):
        problem = Problem(device)
        optimizer = optim_info.optim_cls(problem.parameters)
        problem.run(optimizer, 2)
        expected = without_params(optimizer.param_groups[0])
        for setting in expected:
            old = deepcopy(optimizer.state_dict())
            old["param_groups"][0].pop(setting, None)
            fresh = optim_info.optim_cls(Problem(device).parameters)
            fresh.load_state_dict(old)
            # FilterAdamW's default has changed: without the name it was the paper's.
            meant = {"gain_eps": None} if setting == "gain_eps" else {}
            self.assertEqual(without_params(fresh.param_groups[0]), {**expected, **meant})

    @every_optimizer
    def test_a_step_saved_as_a_number_is_read(self, device, dtype, optim_info):
        problem = Problem(device)
        optimizer = optim_info.optim_cls(problem.parameters, lr=1e-3)
        problem.run(optimizer, 3)
        old = deepcopy(optimizer.state_dict())
        for state in old["state"].values():
            if "step" in state:
                state["step"] = int(state["step"])
        twin = deepcopy(problem)
        loaded = optim_info.optim_cls(twin.parameters, lr=1e-3)
        loaded.load_state_dict(old)
        problem.run(optimizer, 2), twin.run(loaded, 2)
        self.assertEqual(problem.parameters, twin.parameters, rtol=0, atol=0)

    @every_optimizer
    def test_load_hooks_see_what_torch_shows_them(self, device, dtype, optim_info):
        problem, seen = Problem(device), []
        optimizer = optim_info.optim_cls(problem.parameters)
        problem.run(optimizer, 1)
        key = optimizer.moments_of(optimizer.param_groups[0])[0]

        def double(_, state_dict):
            state_dict = deepcopy(state_dict)
            state_dict["state"][0][key] *= 2
            return state_dict

        expected = 2 * optimizer.state[problem.weight][key]
        optimizer.register_load_state_dict_pre_hook(double)
        optimizer.register_load_state_dict_post_hook(
            lambda opt: seen.append(opt.state[problem.weight][key].clone())
        )
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(seen, [expected], rtol=0, atol=0)

    @every_optimizer
    def test_it_can_be_printed(self, device, dtype, optim_info):
        for kwargs in settings_of(optim_info, device):
            text = repr(optim_info.optim_cls(Problem(device).parameters, **kwargs))
            self.assertTrue(text.startswith(optim_info.name))
            self.assertIn("weight_decay", text)


def named(problem, with_names):
    names = ["weight", "bias"]
    return list(zip(names, problem.parameters, strict=True)) if with_names else problem.parameters


def without_params(group):
    return {key: value for key, value in group.items() if key != "params"}


def public(optimizer):
    return {name for name in vars(optimizer) if not name.startswith("_")}


instantiate_device_type_tests(TestContract, globals(), only_for="cpu")
