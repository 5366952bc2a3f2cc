#!/usr/bin/env python3
"""What PyTorch's optimizers and schedules do, as C, for tests/optim/test_{optim,schedules,lbfgs}.c.

usage: tests/optim/optim_cases.py      (needs PyTorch; the tests do not), writes optim_cases.h, schedule_cases.h and
lbfgs_cases.h

Every trajectory starts at p = (1, -2, 0.5, 3, -0.25); the gradient of step k (from 1) is
g_i = (0.5 + 0.25 i) p_i + 0.3 cos(k + i), so that a wrong state shows in the next gradient.
With two groups, each has such a parameter; the second one's numbers differ, and change after step 10. Matrices start
at sin(0.7 i + 1), row by row, with (0.5 + 0.25 (i mod 5)) p_i + 0.3 cos(k + i), in f64.
"""
import contextlib
import math
import pathlib

import torch

START = [1.0, -2.0, 0.5, 3.0, -0.25]
STEPS = [1, 2, 10, 100]
CHANGE = 10
O = torch.optim


class Lion(O.Optimizer):
    """Chen et al. (2023), algorithm 2, written from the paper: PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                along = torch.sign(b1 * m + (1 - b1) * g)
                p.copy_(p - group["lr"] * (along + group["weight_decay"] * p))
                m.copy_(b2 * m + (1 - b2) * g)


class NAdam(O.NAdam):
    """Keeps its product in the default dtype, here f64."""

    def step(self):
        torch.set_default_dtype(torch.float64)
        super().step()
        torch.set_default_dtype(torch.float32)


def made(name, plain, **numbers):
    """The call of one whose numbers are given by name."""
    numbers = ", ".join('{ "%s", %s }' % n for n in numbers.items())
    o = ", ".join(filter(None, [plain, numbers and ".set = { %s }" % numbers]))
    return "tn_%s(list, (tn_optim_options){ %s })" % (name, o)


# name, the call in C, the optimizer in PyTorch
OPTIMIZERS = [
    ("sgd", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05 })", lambda p: O.SGD(p, 0.05)),
    ("sgd_momentum", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05, .momentum = 0.9 })",
     lambda p: O.SGD(p, 0.05, momentum=0.9)),
    ("sgd_all", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05, .momentum = 0.9, .dampening = 0.1, "
     ".weight_decay = 0.01 })", lambda p: O.SGD(p, 0.05, momentum=0.9, dampening=0.1, weight_decay=0.01)),
    ("sgd_nesterov", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05, .momentum = 0.8, .weight_decay = 0.01, "
     ".nesterov = true })", lambda p: O.SGD(p, 0.05, momentum=0.8, weight_decay=0.01, nesterov=True)),
    ("sgd_maximize", "tn_sgd(list, (tn_sgd_options){ .lr = 0.001, .momentum = 0.5, .weight_decay = 0.1, "
     ".maximize = true })", lambda p: O.SGD(p, 0.001, momentum=0.5, weight_decay=0.1, maximize=True)),
    ("adam", "tn_adam(list, (tn_adam_options){ 0 })", lambda p: O.Adam(p)),
    ("adam_decay", "tn_adam(list, (tn_adam_options){ .lr = 0.02, .weight_decay = 0.1 })",
     lambda p: O.Adam(p, 0.02, weight_decay=0.1)),
    ("adam_amsgrad", "tn_adam(list, (tn_adam_options){ .lr = 0.02, .beta1 = 0.8, .beta2 = 0.9, "
     ".eps = 1e-6, .amsgrad = true })",
     lambda p: O.Adam(p, 0.02, betas=(0.8, 0.9), eps=1e-6, amsgrad=True)),
    ("adam_betas_zero", "tn_adam(list, (tn_adam_options){ .lr = 0.02, .use_betas = true, "
     ".beta2 = 0.99 })", lambda p: O.Adam(p, 0.02, betas=(0.0, 0.99))),
    ("adam_maximize", "tn_adam(list, (tn_adam_options){ .lr = 0.002, .maximize = true })",
     lambda p: O.Adam(p, 0.002, maximize=True)),
    ("adamw", "tn_adamw(list, (tn_adamw_options){ .lr = 0.02, .weight_decay = 0.1 })",
     lambda p: O.AdamW(p, 0.02, weight_decay=0.1)),
    ("adamw_amsgrad", "tn_adamw(list, (tn_adamw_options){ .lr = 0.02, .weight_decay = 0.01, "
     ".amsgrad = true })", lambda p: O.AdamW(p, 0.02, weight_decay=0.01, amsgrad=True)),
    ("rmsprop", "tn_rmsprop(list, (tn_rmsprop_options){ 0 })", lambda p: O.RMSprop(p)),
    ("rmsprop_decay", "tn_rmsprop(list, (tn_rmsprop_options){ .lr = 0.02, .alpha = 0.9, .eps = 1e-6, "
     ".weight_decay = 0.1 })", lambda p: O.RMSprop(p, 0.02, alpha=0.9, eps=1e-6, weight_decay=0.1)),
    ("rmsprop_all", "tn_rmsprop(list, (tn_rmsprop_options){ .lr = 0.005, .momentum = 0.9, "
     ".centered = true })", lambda p: O.RMSprop(p, 0.005, momentum=0.9, centered=True)),
    ("adagrad", "tn_adagrad(list, (tn_adagrad_options){ 0 })", lambda p: O.Adagrad(p)),
    ("adagrad_all", "tn_adagrad(list, (tn_adagrad_options){ .lr = 0.1, .lr_decay = 0.05, "
     ".weight_decay = 0.02, .initial_accumulator = 0.1 })",
     lambda p: O.Adagrad(p, 0.1, lr_decay=0.05, weight_decay=0.02, initial_accumulator_value=0.1)),
    ("lion", made("lion", ".lr = 0.01"), lambda p: Lion(p, 0.01)),
    ("lion_decay", made("lion", ".lr = 0.01, .weight_decay = 0.5", beta1=0.95, beta2=0.98, maximize=1),
     lambda p: Lion(p, 0.01, (0.95, 0.98), 0.5, True)),
    ("adamax", made("adamax", "0"), lambda p: O.Adamax(p)),
    ("adamax_all", made("adamax", ".lr = 0.02, .weight_decay = 0.1", beta1=0.8, beta2=0.9, eps=1e-4, maximize=1),
     lambda p: O.Adamax(p, 0.02, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1, maximize=True)),
    ("nadam", made("nadam", "0"), lambda p: NAdam(p)),
    ("nadam_all", made("nadam", ".lr = 0.02, .weight_decay = 0.1", beta1=0.8, beta2=0.9, eps=1e-6, momentum_decay=0.5,
                       maximize=1),
     lambda p: NAdam(p, 0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, momentum_decay=0.5, maximize=True)),
    ("nadam_decoupled", made("nadam", ".lr = 0.02, .weight_decay = 0.1", decoupled_weight_decay=1, momentum_decay=0),
     lambda p: NAdam(p, 0.02, weight_decay=0.1, decoupled_weight_decay=True, momentum_decay=0)),
    ("radam", made("radam", ".lr = 0.02"), lambda p: O.RAdam(p, 0.02)),
    ("radam_all", made("radam", ".lr = 0.02, .weight_decay = 0.1", beta1=0.8, beta2=0.9, eps=1e-6, maximize=1),
     lambda p: O.RAdam(p, 0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, maximize=True)),
    ("radam_decoupled", made("radam", ".weight_decay = 0.1", decoupled_weight_decay=1),
     lambda p: O.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True)),
    ("adafactor", made("adafactor", "0"), lambda p: O.Adafactor(p)),
    ("adafactor_all", made("adafactor", ".lr = 0.05, .weight_decay = 0.1", beta2_decay=0.7, eps1=1e-6, eps2=1e-2, d=2,
                           maximize=1),
     lambda p: O.Adafactor(p, 0.05, beta2_decay=-0.7, eps=(1e-6, 1e-2), d=2.0, weight_decay=0.1, maximize=True)),
]

# The same, for a matrix.
MATRICES = [
    ("adafactor", (3, 5), made("adafactor", ".lr = 0.05"), lambda p: O.Adafactor(p, 0.05)),
    ("adafactor_decay", (6, 2), made("adafactor", ".weight_decay = 0.1", d=1.5),
     lambda p: O.Adafactor(p, weight_decay=0.1, d=1.5)),
    ("muon", (2, 3), made("muon", ".lr = 0.02, .weight_decay = 0.1"), lambda p: O.Muon(p, 0.02)),
    ("muon_tall", (3, 2), made("muon", ".lr = 0.02, .weight_decay = 0.1", rate="TN_MUON_MATCH_ADAMW"),
     lambda p: O.Muon(p, 0.02, adjust_lr_fn="match_rms_adamw")),
    ("muon_plain", (4, 4), made("muon", ".lr = 0.02", momentum=0.8, nesterov=0, ns_steps=3, ns_a=3, ns_b=-4, ns_c=2),
     lambda p: O.Muon(p, 0.02, weight_decay=0, momentum=0.8, nesterov=False, ns_steps=3,
                      ns_coefficients=(3.0, -4.0, 2.0))),
]

# name, the optimizer in C, its second group, its change; the optimizer in PyTorch, its second group, its change
GROUPS = [
    ("sgd", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05, .momentum = 0.9, .dampening = 0.1 })",
     ".lr = 0.02, .momentum = 0.6, .dampening = 0.3", '"dampening", 0',
     lambda p, **group: O.SGD([{"params": p[:1]}, {"params": p[1:], **group}], 0.05, momentum=0.9, dampening=0.1),
     {"lr": 0.02, "momentum": 0.6, "dampening": 0.3}, {"dampening": 0.0}),
    ("sgd_nesterov", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05, .momentum = 0.8, .nesterov = true })",
     ".weight_decay = 0.1, .momentum = 0.5", '"momentum", 0.7',
     lambda p, **group: O.SGD([{"params": p[:1]}, {"params": p[1:], **group}], 0.05, momentum=0.8, nesterov=True),
     {"weight_decay": 0.1, "momentum": 0.5}, {"momentum": 0.7}),
    ("adam", "tn_adam(list, (tn_adam_options){ .lr = 0.02 })", ".beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3",
     '"beta1", 0',
     lambda p, **group: O.Adam([{"params": p[:1]}, {"params": p[1:], **group}], 0.02),
     {"betas": (0.8, 0.95), "eps": 1e-3}, {"betas": (0.0, 0.95)}),
    ("adamw_amsgrad", "tn_adamw(list, (tn_adamw_options){ .lr = 0.02, .weight_decay = 0.1, .amsgrad = true })",
     ".lr = 0.01, .weight_decay = 0.3, .beta2 = 0.9", '"beta2", 0.99',
     lambda p, **group: O.AdamW([{"params": p[:1]}, {"params": p[1:], **group}], 0.02, weight_decay=0.1,
                                amsgrad=True),
     {"lr": 0.01, "weight_decay": 0.3, "betas": (0.9, 0.9)}, {"betas": (0.9, 0.99)}),
    ("rmsprop", "tn_rmsprop(list, (tn_rmsprop_options){ .lr = 0.005, .momentum = 0.9, .centered = true })",
     ".alpha = 0.9, .momentum = 0.5, .eps = 1e-2", '"eps", 1e-4',
     lambda p, **group: O.RMSprop([{"params": p[:1]}, {"params": p[1:], **group}], 0.005, momentum=0.9,
                                  centered=True),
     {"alpha": 0.9, "momentum": 0.5, "eps": 1e-2}, {"eps": 1e-4}),
    ("adagrad", "tn_adagrad(list, (tn_adagrad_options){ .lr = 0.1 })", ".lr_decay = 0.05, .eps = 1e-2",
     '"lr_decay", 0.2',
     lambda p, **group: O.Adagrad([{"params": p[:1]}, {"params": p[1:], **group}], 0.1),
     {"lr_decay": 0.05, "eps": 1e-2}, {"lr_decay": 0.2}),
    ("sgd_momentum", "tn_sgd(list, (tn_sgd_options){ .lr = 0.05 })",
     '.set = { { "momentum", 0.9 }, { "nesterov", 1 } }', '"momentum", 0.5',
     lambda p, **group: O.SGD([{"params": p[:1]}, {"params": p[1:], **group}], 0.05),
     {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5}),
    ("adam_switches", "tn_adam(list, (tn_adam_options){ .lr = 0.02, .amsgrad = true, .beta2 = 0.9 })",
     '.set = { { "amsgrad", 0 }, { "maximize", 1 } }', '"beta2", 0.99',
     lambda p, **group: O.Adam([{"params": p[:1]}, {"params": p[1:], **group}], 0.02, betas=(0.9, 0.9), amsgrad=True),
     {"amsgrad": False, "maximize": True}, {"betas": (0.9, 0.99)}),
    ("rmsprop_plain", "tn_rmsprop(list, (tn_rmsprop_options){ .lr = 0.005, .momentum = 0.9, .centered = true })",
     '.set = { { "momentum", 0 }, { "centered", 0 } }', '"alpha", 0.5',
     lambda p, **group: O.RMSprop([{"params": p[:1]}, {"params": p[1:], **group}], 0.005, momentum=0.9,
                                  centered=True),
     {"momentum": 0, "centered": False}, {"alpha": 0.5}),
    ("nadam", made("nadam", ".lr = 0.02"),
     '.weight_decay = 0.1, .set = { { "momentum_decay", 0.1 }, { "decoupled_weight_decay", 1 } }',
     '"eps", 1e-6',
     lambda p, **group: NAdam([{"params": p[:1]}, {"params": p[1:], **group}], 0.02),
     {"weight_decay": 0.1, "momentum_decay": 0.1, "decoupled_weight_decay": True}, {"eps": 1e-6}),
]

S = O.lr_scheduler
# name, the call in C, the schedule in PyTorch; base rate 1
SCHEDULES = [
    ("step", "tn_step_lr(opt, 3, 0.1)", lambda o: S.StepLR(o, 3, 0.1)),
    ("multistep", "tn_multistep_lr(opt, (int64_t[]){ 2, 5, 5 }, 3, 0.1)",
     lambda o: S.MultiStepLR(o, [2, 5, 5], 0.1)),
    ("exponential", "tn_exponential_lr(opt, 0.9)", lambda o: S.ExponentialLR(o, 0.9)),
    ("cosine", "tn_cosine_lr(opt, 4, 0.1)", lambda o: S.CosineAnnealingLR(o, 4, 0.1)),
    ("restarts", "tn_cosine_restarts_lr(opt, 3, 2, 0.05)",
     lambda o: S.CosineAnnealingWarmRestarts(o, 3, 2, 0.05)),
    ("restarts_equal", "tn_cosine_restarts_lr(opt, 4, 1, 0)",
     lambda o: S.CosineAnnealingWarmRestarts(o, 4, 1, 0)),
    ("linear", "tn_linear_lr(opt, 1.0 / 3, 1, 5)", lambda o: S.LinearLR(o)),
    ("linear_down", "tn_linear_lr(opt, 0.9, 0.2, 7)", lambda o: S.LinearLR(o, 0.9, 0.2, 7)),
    ("constant", "tn_constant_lr(opt, 0.25, 4)", lambda o: S.ConstantLR(o, 0.25, 4)),
    ("polynomial", "tn_polynomial_lr(opt, 6, 2)", lambda o: S.PolynomialLR(o, 6, 2)),
    ("lambda", "tn_lambda_lr(opt, one_over, NULL)", lambda o: S.LambdaLR(o, lambda t: 1 / (t + 1))),
    ("one_cycle", "tn_one_cycle_lr(opt, (tn_one_cycle_options){ .max_lr = 2, .total_steps = 20 })",
     lambda o: S.OneCycleLR(o, 2, total_steps=20)),
    ("one_cycle_odd", "tn_one_cycle_lr(opt, (tn_one_cycle_options){ .max_lr = 0.5, .total_steps = 17, "
     ".pct_start = 0.45, .div_factor = 10, .final_div_factor = 100, .base_momentum = 0.8, "
     ".max_momentum = 0.9 })",
     lambda o: S.OneCycleLR(o, 0.5, total_steps=17, pct_start=0.45, div_factor=10, final_div_factor=100,
                            base_momentum=0.8, max_momentum=0.9)),
    ("sequential", "sequence(opt)",
     lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 4), S.CosineAnnealingLR(o, 6, 0),
                                  S.ConstantLR(o, 0.5, 2)], [4, 9])),
    ("multiplicative", "tn_multiplicative_lr(opt, wavering, NULL)",
     lambda o: S.MultiplicativeLR(o, lambda t: 0.9 if t % 3 else 1.2)),
    ("chained", "chain(opt)",
     lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 3), S.ExponentialLR(o, 0.9), S.StepLR(o, 4, 0.5),
                                   S.MultiplicativeLR(o, lambda t: 0.9 if t % 3 else 1.2)])),
    ("chained_cosine", "chained_cosine(opt)",
     lambda o: S.ChainedScheduler([S.ExponentialLR(o, 0.95), S.CosineAnnealingLR(o, 20)])),
]
N_RATES = 16

METRICS = [1, 0.95, 0.9, 0.89, 0.79, 0.78, 0.7, 0.71, 0.6, 0.6, 0.55, 0.45, 0.45, 0.45, 0.44, 0.5]
P = S.ReduceLROnPlateau
# name, the call in C, the plateau in PyTorch, the schedule before it, for how many steps
PLATEAUS = [
    ("absolute", "plateau(opt, .factor = .5, .use_patience = true, .threshold = .1, .absolute = true)",
     lambda o: P(o, factor=0.5, patience=0, threshold=0.1, threshold_mode="abs"), None, 0),
    ("absolute_maximize", "plateau(opt, .patience = 2, .threshold = .1, .absolute = true, .maximize = true)",
     lambda o: P(o, mode="max", patience=2, threshold=0.1, threshold_mode="abs"), None, 0),
    ("after_warmup", "warmed(opt)", lambda o: P(o, factor=0.5, patience=0, threshold=0.1),
     lambda o: S.LinearLR(o, 0.1, 0.9, 4), 4),
]


def trajectories(make, n, change=lambda opt: None):
    """Of n parameters: one list of rows each."""
    parameters = [torch.tensor(START, dtype=torch.float64, requires_grad=True) for _ in range(n)]
    opt = make(parameters)
    i = torch.arange(len(START), dtype=torch.float64)
    rows = [[] for _ in range(n)]
    for k in range(1, STEPS[-1] + 1):
        for p in parameters:
            with torch.no_grad():
                p.grad = (0.5 + 0.25 * i) * p + 0.3 * torch.tensor([math.cos(k + j) for j in range(len(START))],
                                                                   dtype=torch.float64)
        opt.step()
        if k in STEPS:
            for of, p in zip(rows, parameters):
                of.append(p.detach().tolist())
        if k == CHANGE:
            change(opt)
    return rows


def matrix_trajectory(shape, make):
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    p = torch.sin(0.7 * i + 1).reshape(shape).requires_grad_()
    opt, rows = make([p]), []
    for k in range(1, STEPS[-1] + 1):
        with torch.no_grad():
            p.grad = (0.5 + 0.25 * (i % 5)).reshape(shape) * p + 0.3 * torch.cos(k + i).reshape(shape)
        opt.step()
        if k in STEPS:
            rows.append(p.detach().flatten().tolist())
    return rows


def rates(make):
    p = torch.zeros(1, requires_grad=True)
    opt = O.SGD([p], 1.0, momentum=0.9)
    schedule = make(opt)
    values = []
    for _ in range(N_RATES):
        values.append((opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]))
        opt.step()
        schedule.step()
    return values


def plateau_rates(make, before, n):
    opt = O.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    warmup = before and before(opt)
    plateau = make(opt)
    values = []
    for t, metric in enumerate(METRICS):
        opt.step()
        if t < n:
            warmup.step()
        else:
            plateau.step(metric)
        values.append(opt.param_groups[0]["lr"])
    return values


def row(values):
    return "{ " + ", ".join(repr(float(v)) for v in values) + " }"


def head(name):
    print("/* clang-format off */")
    print("/* %s - made by tests/optim/optim_cases.py with PyTorch %s; not edited. */" % (name, torch.__version__))


def optimizers():
    print("#define N_START %d" % len(START))
    print("#define N_AT %d" % len(STEPS))
    print("static const double start[N_START] = %s;" % row(START))
    print("static const int steps_at[N_AT] = { %s };" % ", ".join(map(str, STEPS)))
    print("\nstatic const struct { const char *name; double p[N_AT][N_START]; } trajectories[] = {")
    for name, _, make in OPTIMIZERS:
        print('    { "%s", {' % name)
        for values in trajectories(make, 1)[0]:
            print("        %s," % row(values))
        print("    } },")
    print("};\n")
    most = max(math.prod(shape) for _, shape, *_ in MATRICES)
    print("static const struct { const char *name; int rows, columns; double p[N_AT][%d]; } matrices[] = {" % most)
    for name, shape, _, make in MATRICES:
        print('    { "%s", %d, %d, {' % (name, *shape))
        for values in matrix_trajectory(shape, make):
            print("        %s," % row(values))
        print("    } },")
    print("};\n")
    print("enum { CHANGE_AFTER = %d };" % CHANGE)
    print("static const struct {\n    const char *name;\n    tn_group_options second;\n    const char *changed;"
          "\n    double to, p[2][N_AT][N_START];\n} of_groups[] = {")
    for name, _, second, changed, make, given, change in GROUPS:
        print('    { "%s", { %s }, %s, {' % (name, second, changed))
        for rows in trajectories(lambda p: make(p, **given), 2, lambda opt: opt.param_groups[1].update(change)):
            print("        {")
            for values in rows:
                print("            %s," % row(values))
            print("        },")
        print("    } },")
    print("};\n")
    print("static tn_optim *make_first_group(int which, const tn_list *list)\n{\n    switch (which) {")
    for i, (_, call, *_) in enumerate(GROUPS):
        print("    case %d: return %s;" % (i, call))
    print("    default: return NULL;\n    }\n}\n")
    print("static tn_optim *make_matrix_optimizer(int which, const tn_list *list)\n{\n    switch (which) {")
    for i, (_, _, call, _) in enumerate(MATRICES):
        print("    case %d: return %s;" % (i, call))
    print("    default: return NULL;\n    }\n}\n")
    print("static tn_optim *make_optimizer(int which, const tn_list *list)\n{\n    switch (which) {")
    for i, (_, call, _) in enumerate(OPTIMIZERS):
        print("    case %d: return %s;" % (i, call))
    print("    default: return NULL;\n    }\n}")


def schedules():
    print("#define N_RATES %d" % N_RATES)
    print("static const struct { const char *name; double rate[N_RATES], momentum[N_RATES]; } "
          "schedules[] = {")
    for name, _, make in SCHEDULES:
        values = rates(make)
        print('    { "%s",\n      %s,\n      %s },' % (name, row(v[0] for v in values),
                                                  row(v[1] for v in values)))
    print("};\n")
    print("static tn_scheduler *make_schedule(int which, tn_optim *opt)\n{\n    switch (which) {")
    for i, (_, call, _) in enumerate(SCHEDULES):
        print("    case %d: return %s;" % (i, call))
    print("    default: return NULL;\n    }\n}\n")
    print("static const double metrics[N_RATES] = %s;" % row(METRICS))
    print("static const struct { const char *name; int from; double rate[N_RATES]; } plateaus[] = {")
    for name, _, make, before, n in PLATEAUS:
        print('    { "%s", %d, %s },' % (name, n, row(plateau_rates(make, before, n))))
    print("};\n")
    print("static tn_scheduler *make_plateau(int which, tn_optim *opt)\n{\n    switch (which) {")
    for i, (_, call, *_) in enumerate(PLATEAUS):
        print("    case %d: return %s;" % (i, call))
    print("    default: return NULL;\n    }\n}")


# name, problem, numbers
LBFGS = [
    ("rosenbrock", 0, dict(line_search=1)),
    ("rosenbrock_short", 0, dict(line_search=1, max_iter=2, history_size=3)),
    ("rosenbrock_one", 0, dict(line_search=1, max_iter=1)),
    ("rosenbrock_few", 0, dict(line_search=1, max_iter=4, max_eval=6, lr=0.5)),
    ("rosenbrock_near", 0, dict(line_search=1, max_iter=4, max_eval=3, lr=1e-2)),
    ("rosenbrock_far", 0, dict(line_search=1, max_iter=6, max_eval=30, lr=100)),
    ("rosenbrock_fixed", 0, dict(max_iter=3, lr=0.1)),
    ("net", 1, dict(line_search=1, max_iter=4, max_eval=9)),
    ("net_far", 1, dict(line_search=1, max_iter=6, max_eval=30, lr=1000)),
    ("net_climbing", 1, dict(line_search=1, max_iter=3, history_size=4, maximize=1)),
    ("net_fixed", 1, dict(max_iter=5, lr=0.3, history_size=5)),
    ("net_long", 1, dict(line_search=1, lr=2, tolerance_grad=1e-4, tolerance_change=1e-6)),
]
LBFGS_STEPS = [1, 2, 5, 50]


def lbfgs_loss(problem, sign, p):
    """Rosenbrock's valley in 6 dimensions; a net of 3, 4 and 1 units, of 8 rows."""
    if problem == 0:
        x = torch.cat([t.flatten() for t in p])
        loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    else:
        i = torch.arange(24, dtype=torch.float64)
        x, y = torch.sin(0.9 * i + 0.5).reshape(8, 3), torch.cos(1.7 * i[:8])
        loss = ((torch.tanh(x @ p[0] + p[1]) @ p[2] - y) ** 2).mean() + 0.05 * sum((t ** 2).sum() for t in p)
    return sign * loss


def lbfgs_trajectory(problem, given):
    given = dict(given)
    if given.pop("line_search", 0):
        given["line_search_fn"] = "strong_wolfe"
    sign = -1 if given.setdefault("maximize", 0) else 1
    shapes = [[(2,), (2, 2)], [(3, 4), (4,), (4,)]][problem]
    p, i = [], 0
    for shape in shapes:
        n = math.prod(shape)
        p.append(torch.tensor([math.sin(2.3 * (i + k) + 4) for k in range(n)], dtype=torch.float64).reshape(shape)
                 .requires_grad_())
        i += n
    opt, rows, calls = O.LBFGS(p, **given), [], 0

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = lbfgs_loss(problem, sign, p)
        loss.backward()
        return loss

    for k in range(1, LBFGS_STEPS[-1] + 1):
        loss = opt.step(closure)
        if k in LBFGS_STEPS:
            values = [x for t in p for x in t.detach().flatten().tolist()]
            rows.append((float(loss.detach()), calls, values))
    return rows


def lbfgs():
    print("enum { N_VALUES = 20, N_AT = %d };" % len(LBFGS_STEPS))
    print("static const int steps_at[N_AT] = { %s };" % ", ".join(map(str, LBFGS_STEPS)))
    print("static const struct {\n    const char *name;\n    int problem;\n    tn_optim_options o;\n    struct {"
          "\n        double loss;\n        int calls;\n        double p[N_VALUES];\n    } at[N_AT];\n} cases[] = {")
    for name, problem, given in LBFGS:
        plain = ".lr = %g, " % given["lr"] if "lr" in given else ""
        numbers = ", ".join('{ "%s", %g }' % n for n in given.items() if n[0] != "lr")
        print('    { "%s", %d, { %s.set = { %s } }, {' % (name, problem, plain, numbers))
        for loss, calls, values in lbfgs_trajectory(problem, given):
            print("        { %r, %d, %s }," % (loss, calls, row(values)))
        print("    } },")
    print("};")


for name, write in (("optim_cases.h", optimizers), ("schedule_cases.h", schedules), ("lbfgs_cases.h", lbfgs)):
    with open(pathlib.Path(__file__).parent / name, "w") as file, contextlib.redirect_stdout(file):
        head(name)
        write()
