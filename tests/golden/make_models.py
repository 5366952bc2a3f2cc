#!/usr/bin/env python3
"""Makes models.txt: the losses that the programs of examples/models print, from the same networks in PyTorch, which
draw the same weights and data from the same seed. Each line: NAME/QUANTITY, then the values of 20 steps.

usage: python3 tests/golden/make_models.py [FILE]

The recurrent networks train in f32, the others in f64. In f32 rounding alone changes the losses of resnet18 by up to
9e-4, those of unet by 3e-5, those of dcgan by 7e-4, and those of mobilenetv2 wholly; those of ctc and seq2seq by 4e-7.
The suite (tests/examples/models_check.sh) compares to 1e-4.
"""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 20


def train(model, optimizer, loss_of):
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9)


# ---- resnet18 ----------------------------------------------------------------------------------------------

class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.downsample = None
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


def images_by_heart(model, lr):
    x, y = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    return train(model, sgd(model, lr), lambda m: F.cross_entropy(m(x), y))


def resnet18():
    w, stages = 8, []
    stem = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for i in range(4):
        o = w << i
        stages += [Block(o if i == 0 else o // 2, o, 2 if i else 1), Block(o, o, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, 10)]
    return {"loss": images_by_heart(nn.Sequential(*stem, *stages, *head), 0.001)}


# ---- mobilenetv2 -------------------------------------------------------------------------------------------

def conv_norm_act(i, o, kernel, stride, groups):
    return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(o), nn.ReLU6())


class Inverted(nn.Module):
    def __init__(self, i, o, stride, expand):
        super().__init__()
        wide = i * expand
        first = [conv_norm_act(i, wide, 1, 1, 1)] if expand != 1 else []
        self.conv = nn.Sequential(*first, conv_norm_act(wide, wide, 3, stride, wide),
                                  nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o))
        self.residual = stride == 1 and i == o

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


def mobilenetv2():
    i, blocks = 8, [conv_norm_act(3, 8, 3, 2, 1)]
    for expand, channels, count, stride in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                                            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for k in range(count):
            blocks.append(Inverted(i, channels // 4, 1 if k else stride, expand))
            i = channels // 4
    blocks += [conv_norm_act(i, 320, 1, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 10)]
    return {"loss": images_by_heart(nn.Sequential(*blocks), 0.0003)}


# ---- unet --------------------------------------------------------------------------------------------------

def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([double_conv(1, 8), double_conv(8, 16), double_conv(16, 32)])
        self.bottom = double_conv(32, 64)
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for w in (32, 16, 8):
            self.up.append(nn.ConvTranspose2d(2 * w, w, 2, 2))
            self.merge.append(double_conv(2 * w, w))
        self.segment = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.segment(x)


def unet():
    def loss(m):
        row = torch.arange(32.0)
        dx = row - torch.rand(8, 1, 1, 1) * 32
        dy = row[:, None] - torch.rand(8, 1, 1, 1) * 32
        radius = torch.rand(8, 1, 1, 1) * 6 + 4
        mask = (dx.square() + dy.square() < radius.square()).to(row.dtype)
        return F.binary_cross_entropy_with_logits(m(mask + torch.randn(8, 1, 32, 32)), mask)
    model = UNet()
    return {"loss": train(model, sgd(model, 0.05), loss)}


# ---- dcgan -------------------------------------------------------------------------------------------------

def dcgan():
    w = 8
    up = dict(kernel_size=4, stride=2, padding=1, bias=False)
    generator = nn.Sequential(
        nn.ConvTranspose2d(16, 4 * w, 4, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(),
        nn.ConvTranspose2d(4 * w, 2 * w, **up), nn.BatchNorm2d(2 * w), nn.ReLU(),
        nn.ConvTranspose2d(2 * w, w, **up), nn.BatchNorm2d(w), nn.ReLU(),
        nn.ConvTranspose2d(w, 1, **up), nn.Tanh())
    discriminator = nn.Sequential(
        nn.Conv2d(1, w, **up), nn.LeakyReLU(0.2),
        nn.Conv2d(w, 2 * w, **up), nn.BatchNorm2d(2 * w), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * w, 4 * w, **up), nn.BatchNorm2d(4 * w), nn.LeakyReLU(0.2),
        nn.Conv2d(4 * w, 1, 4, bias=False))
    optimizers = []
    for m in (generator, discriminator):
        for p in m.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
        optimizers.append(torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)))

    def verdict(images, wanted):
        scores = discriminator(images)
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, wanted))

    out = {"discriminator": [], "generator": []}
    for _ in range(STEPS):
        made = generator(torch.randn(16, 16, 1, 1))
        row = torch.linspace(-2, 2, 32)
        dx = row - torch.rand(16, 1, 1, 1)
        dy = row[:, None] - torch.rand(16, 1, 1, 1)
        real = torch.exp((dx.square() + dy.square()) * -2) * 2 - 1
        d_loss = verdict(real, 1.0) + verdict(made.detach(), 0.0)
        optimizers[1].zero_grad(), d_loss.backward(), optimizers[1].step()
        g_loss = verdict(made, 1.0)
        optimizers[0].zero_grad(), g_loss.backward(), optimizers[0].step()
        out["discriminator"].append(d_loss.item())
        out["generator"].append(g_loss.item())
    return out


# ---- ctc ---------------------------------------------------------------------------------------------------

class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 32, batch_first=True, bidirectional=True)
        self.classify = nn.Linear(64, 11)

    def forward(self, x):
        return F.log_softmax(self.classify(self.lstm(x)[0]), -1).transpose(0, 1)


def ctc():
    model = Recogniser()
    shapes = torch.randn(10, 48)

    def loss(m):
        digits = torch.randint(0, 10, (16, 5))
        signals = shapes[digits].reshape(16, 20, 12) + torch.randn(16, 20, 12) * 0.3
        return F.ctc_loss(m(signals), digits + 1, torch.full((16,), 20), torch.full((16,), 5))
    return {"loss": train(model, sgd(model, 0.1), loss)}


# ---- seq2seq -----------------------------------------------------------------------------------------------

class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 32)
        self.encoder, self.decoder = nn.GRU(32, 32, batch_first=True), nn.GRU(32, 32, batch_first=True)
        self.combine, self.head = nn.Linear(64, 32), nn.Linear(32, 11)

    def forward(self, source, before):
        memory, state = self.encoder(self.embed(source))
        h, _ = self.decoder(self.embed(before), state)
        context = torch.softmax(h @ memory.transpose(1, 2), -1) @ memory
        return self.head(torch.tanh(self.combine(torch.cat([context, h], -1))))


def seq2seq():
    def loss(m):
        source = torch.randint(0, 10, (16, 8))
        target = source.flip(1)
        before = torch.cat([torch.full((16, 1), 10), target[:, :-1]], 1)
        return F.cross_entropy(m(source, before).flatten(0, 1), target.flatten())
    model = Translator()
    return {"loss": train(model, sgd(model, 0.2), loss)}


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "models.txt"), "w") as file:
        print("# tests/golden/make_models.py, PyTorch", torch.__version__, file=file)
        for program in [resnet18, mobilenetv2, unet, dcgan, ctc, seq2seq]:
            torch.set_default_dtype(torch.float32 if program in (ctc, seq2seq) else torch.float64)
            torch.manual_seed(1)
            for quantity, values in program().items():
                print(f"{program.__name__}/{quantity}", *[f"{v:.7g}" for v in values], file=file)
