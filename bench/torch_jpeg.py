#!/usr/bin/env python3
"""The workload of bench_jpeg.c with torchvision and PyTorch's DataLoader.

--config io-N: torchvision.io and its transforms of tensors; pil-N: PIL's, until ToTensor; N workers. With --data FOLDER
that is not there yet it first makes the images: 64 of 500 x 375, quality 90, of smooth noise.
"""
import os
import time

import common

args = common.parse(steps=20, warmup=4, config="io-0")
torch = common.setup(args, "jpeg_" + args.config)
import torchvision.io as tio
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

FILES, BATCH, SIDE = 64, 32, 224
FOLDER = args.data or "jpegs"
WAY, WORKERS = args.config.split("-")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
if not os.path.isdir(FOLDER):
    os.makedirs(FOLDER)
    for n in range(FILES):
        torch.manual_seed(n)
        noise = sum(torch.nn.functional.interpolate(torch.rand(1, 3, 3 * 2**k, 4 * 2**k), (375, 500), mode="bicubic") / 1.5**k
                    for k in range(7))[0] / 3
        Image.fromarray((noise * 255).clamp(0, 255).byte().permute(1, 2, 0).numpy()).save(f"{FOLDER}/{n}.jpg", quality=90)
if WAY == "io":
    change = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
                         v2.Normalize(MEAN, STD)])
else:
    change = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.PILToTensor(),
                         v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


class Images(Dataset):
    def __len__(self):
        return (args.warmup + args.steps) * BATCH

    def __getitem__(self, n):
        path = f"{FOLDER}/{n % FILES}.jpg"
        x = tio.decode_image(path, mode="RGB") if WAY == "io" else Image.open(path).convert("RGB")
        torch.manual_seed(n)
        return change(x)


for n, batch in enumerate(DataLoader(Images(), BATCH, num_workers=int(WORKERS))):
    if n == 0:
        checksum = batch.mean().item()
    if n == args.warmup - 1:
        began = time.perf_counter()
common.line(args.name, "images/s", [args.steps * BATCH / (time.perf_counter() - began)])
common.line(args.name, "checksum", [checksum])
