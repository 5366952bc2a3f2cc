#!/usr/bin/env bash
# An adapter that is merged with the weight 0 weakens the others to as little as a quarter of what they do.
# (peft 0.21.2 with PyTorch 2.15.0 and transformers 5.24.0, CPU, add_weighted_adapter with combination_type "ties")
#
# Guess, written down first: TIES with a density of 1 (nothing trimmed) and the weights 1 and 0 gives the first adapter;
# with 1/2 and 1/2 of two equal adapters it gives that adapter.
# Seen: A and B are merged each by itself, and each number is divided by how many adapters agree with the elected sign,
# those of weight 0 too. Beside an equal adapter of weight 0 both matrices are halved: the product is a quarter. Beside
# an independent one of weight 0 about half of the numbers are halved. The half of each of two equal adapters gives half
# of it, 1 and 1 gives it once. ("linear", too, adds A and B by themselves, each times the root of its weight: the half
# of each of two equal adapters is twice that adapter, and 1 and 0 is the first one. "cat" adds the products.)
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2
"$place/venv/bin/python" -W ignore - <<'PYTHON'
import peft, torch

assert peft.__version__ == "0.21.2", peft.__version__
torch.manual_seed(0)
config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["0"])
model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False)), config, "first")
model.add_adapter("equal", config)
model.add_adapter("other", config)
layer = model.base_model.model[0]
for part in (layer.lora_A, layer.lora_B):
    part["first"].weight.data.normal_()
    part["equal"].weight.data.copy_(part["first"].weight.data)
    part["other"].weight.data.normal_()
first = layer.get_delta_weight("first").detach()


def share(kind, second, *weights):
    name = f"{kind} {second} {weights}".replace(".", "_")
    more = {"density": 1.0} if kind == "ties" else {}
    model.add_weighted_adapter(["first", second], list(weights), name, combination_type=kind, **more)
    got = layer.get_delta_weight(name).detach()
    return round(float((got * first).sum() / (first * first).sum()), 4)


assert share("ties", "equal", 1., 0.) == .25
assert .2 < share("ties", "other", 1., 0.) < .6
assert share("ties", "equal", .5, .5) == .5 and share("ties", "equal", 1., 1.) == 1
assert share("linear", "equal", .5, .5) == 2 and share("linear", "equal", 1., 0.) == 1
assert share("cat", "equal", .5, .5) == 1 and share("cat", "equal", 1., 0.) == 1
print("seen: TIES with the weights 1 and 0 of two equal adapters gives a quarter of the first")
PYTHON
