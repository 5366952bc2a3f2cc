#!/usr/bin/env python3
"""Makes images/*, small PNG and JPEG files, and images.safetensors: what torchvision decodes and makes of them.

usage: make_images.py     (PyTorch 2.15.0 on a CPU with AVX2, torchvision 0.29.2, Pillow 13.0.0, safetensors not needed)
Pixel (c, y, x) of the picture is (3 x x + 5 x y + y y + 71 c) mod 256. Each random transform is done with the seeds 0, 1, ...;
"NAME.next" are the numbers that the generator gives after them: others there would mean other draws.
"""
import io
import json
import pathlib
import struct
import zlib

import numpy as np
import torch
import torchvision.io as tio
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

HERE = pathlib.Path(__file__).resolve().parent
FILES = HERE / "images"
OUT = {}
LINEAR, CUBIC, NEAREST = v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC, v2.InterpolationMode.NEAREST


def picture(c, h, w):
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([(3 * x * x + 5 * x * y + y * y + 71 * k) % 256 for k in range(c)]).to(torch.uint8)


def put(name, x):
    OUT[name] = x.contiguous()


def seeded(name, transform, x, seeds):
    made, after = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        made.append(transform(x))
        after.append(torch.randint(0, 1 << 20, (1,)))
    put(name, torch.stack(made))
    put(name + ".next", torch.cat(after))


def save(path):
    header, data, at = {}, b"", 0
    kinds = {torch.uint8: "U8", torch.float32: "F32", torch.int64: "I64"}
    for name, x in OUT.items():
        raw = x.numpy().tobytes()
        header[name] = {"dtype": kinds[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        data, at = data + raw, at + len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows, w, h, depth, color, more=b"", interlace=0):
    """rows: the filtered bytes, all of filter 0"""
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, interlace)) + more
            + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def adam7(x):
    """Rows of the seven passes of [H, W, 3]"""
    out = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        for row in x[y0::dy, x0::dx]:
            if row.size:
                out += b"\0" + row.tobytes()
    return out


def packed(x, bits):
    """Grey values 0 to 2^bits - 1 as rows"""
    out = b""
    for row in x:
        digits = "".join(format(v, f"0{bits}b") for v in row)
        digits += "0" * (-len(digits) % 8)
        out += b"\0" + int(digits, 2).to_bytes(len(digits) // 8, "big")
    return out


def files():
    h, w = 6, 9
    rgb = np.ascontiguousarray(picture(3, h, w).permute(1, 2, 0).numpy())
    grey, alpha = rgb[..., 0], 255 - rgb[..., 1]
    wide = (rgb.astype(">u2") * 257 ^ 0x55).astype(">u2")
    exif_png = struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x112, 3, 1, 6, 0, 0)  # the JPEG's is MM
    made = {
        "rgb.png": png(b"".join(b"\0" + r.tobytes() for r in rgb), w, h, 8, 2),
        "rgb16.png": png(b"".join(b"\0" + r.tobytes() for r in wide), w, h, 16, 2),
        "grey16.png": png(b"".join(b"\0" + r.tobytes() for r in np.ascontiguousarray(wide[..., 0])), w, h, 16, 0),
        "grey.png": png(b"".join(b"\0" + r.tobytes() for r in grey), w, h, 8, 0),
        "grey_alpha.png": png(b"".join(b"\0" + r.tobytes() for r in np.stack([grey, alpha], -1)), w, h, 8, 4),
        "rgba.png": png(b"".join(b"\0" + r.tobytes() for r in np.concatenate([rgb, alpha[..., None]], -1)), w, h, 8, 6),
        "interlaced.png": png(adam7(rgb), w, h, 8, 2, interlace=1),
        "turned.png": png(b"".join(b"\0" + r.tobytes() for r in rgb), w, h, 8, 2, chunk(b"eXIf", exif_png)),
        "palette.png": png(b"".join(b"\0" + r.tobytes() for r in grey % 7), w, h, 8, 3,
                           chunk(b"PLTE", bytes(range(10, 31))) + chunk(b"tRNS", b"\0\x80")),
        "palette4.png": png(packed(grey % 7, 4), w, h, 4, 3, chunk(b"PLTE", bytes(range(10, 31)))),
    }
    for bits in (1, 2, 4):
        made[f"grey{bits}.png"] = png(packed(grey >> (8 - bits), bits), w, h, bits, 0)
    smooth = torch.stack([(picture(3, 10, 18)[k].float() / 8 + 9 * torch.arange(18)).clamp(0, 255) for k in range(3)])
    smooth = np.ascontiguousarray(smooth.to(torch.uint8).permute(1, 2, 0).numpy())

    def jpeg(image, **how):
        out = io.BytesIO()
        image.save(out, "JPEG", **how)
        return out.getvalue()

    image = Image.fromarray(smooth)
    made["444.jpg"] = jpeg(image, quality=90, subsampling=0)
    made["420.jpg"] = jpeg(image, quality=75, subsampling=2)
    made["progressive.jpg"] = jpeg(image, quality=75, subsampling=1, progressive=True)
    made["grey.jpg"] = jpeg(image.convert("L"), quality=80)
    made["cmyk.jpg"] = jpeg(Image.fromarray(np.concatenate([smooth, 255 - smooth[..., :1]], -1), "CMYK"), quality=80)
    exif = Image.Exif()
    exif[0x112] = 6
    made["turned.jpg"] = jpeg(image.crop((0, 0, 16, 8)), quality=75, subsampling=0, exif=exif)
    return made


def decoded():
    FILES.mkdir(exist_ok=True)
    for name, raw in files().items():
        (FILES / name).write_bytes(raw)
        data = torch.tensor(list(raw), dtype=torch.uint8)
        for mode in ("RGB", "GRAY", "UNCHANGED"):
            if name.startswith("turned") and mode != "RGB" or name == "palette4.png" and mode == "UNCHANGED":
                continue  # of the latter torchvision leaves two indices in a byte
            x = tio.decode_image(data, tio.ImageReadMode[mode], apply_exif_orientation=name.startswith("turned"))
            put(f"{name}.{mode}", x if x.dtype == torch.uint8 else (x.to(torch.int32) >> 8).to(torch.uint8))


    raw = bytearray((FILES / "turned.jpg").read_bytes())
    at = raw.index(b"\x01\x12\0\x03\0\0\0\x01\0\x06") + 9
    for turn in range(1, 9):
        raw[at] = turn
        put(f"turned{turn}", tio.decode_image(torch.tensor(list(raw), dtype=torch.uint8), apply_exif_orientation=True))


def resized(x):
    for filter, name in ((LINEAR, "linear"), (CUBIC, "cubic"), (NEAREST, "nearest")):
        for h, w in ((5, 6), (15, 20), (13, 6), (4, 17), (2, 3)):
            for antialias in (True, False):
                if filter != NEAREST or antialias:
                    put(f"resize.{name}.{int(antialias)}.{h}x{w}", F.resize(x, [h, w], filter, antialias=antialias))
    put("resize.short", F.resize(x, [6]))
    put("resize.short.tall", F.resize(x.transpose(1, 2), [6]))
    put("resize.f32", F.resize(F.to_dtype(x, torch.float32, scale=True), [5, 6]))


def moved(x):
    for h, w in ((6, 8), (7, 10), (15, 20), (15, 5)):
        put(f"center.{h}x{w}", F.center_crop(x[:1], [h, w]))
    put("pad.constant", F.pad(x[:1], [1, 2, 3, 4], fill=7))
    put("pad.reflect", F.pad(x[:1], [1, 2, 3, 4], padding_mode="reflect"))
    put("pad.edge", F.pad(x[:1], [1, 2, 3, 4], padding_mode="edge"))
    for name, filter in (("nearest", NEAREST), ("linear", LINEAR)):
        for angle in (-33.0, 90.0, 180.0, 200.5):
            for expand in (False, True):
                put(f"rotate.{name}.{angle:g}.{int(expand)}", F.rotate(x[:1], angle, filter, expand, fill=[9.0]))
    seeded("rotate.random", v2.RandomRotation((-40, 60), LINEAR), x[:1], 4)
    seeded("rrc", v2.RandomResizedCrop((5, 6)), x, 8)
    seeded("rrc.middle", v2.RandomResizedCrop((5, 6), scale=(0.9, 1), ratio=(5, 6)), x[:1], 2)
    seeded("crop", v2.RandomCrop((5, 17)), x[:1], 4)
    seeded("flip.-1", v2.RandomHorizontalFlip(), x[:, :5, :9], 4)
    seeded("flip.-2", v2.RandomVerticalFlip(0.3), x[:1], 8)
    seeded("erase", v2.RandomErasing(value=3), x[:1], 6)


def recolored(x):
    floats = F.to_dtype(x, torch.float32, scale=True)
    for name, change, factors in (("0", F.adjust_brightness, (0.4, 1.7)), ("1", F.adjust_contrast, (0.4, 1.7)),
                                  ("2", F.adjust_saturation, (0.0, 2.5)), ("3", F.adjust_hue, (-0.3, 0.45))):
        for factor in factors:
            put(f"adjust.{name}.{factor:g}", change(x, factor))
    put("adjust.grey", F.adjust_contrast(x[:1], 1.7))
    seeded("jitter", v2.ColorJitter(0.4, 0.5, 0.6, 0.2), x[:, :8, :8], 6)
    seeded("jitter.some", v2.ColorJitter(contrast=0.5, hue=0.1), x[:, :6, :6], 4)
    seeded("jitter.f32", v2.ColorJitter(0.4, 0.5, 0.6, 0.2), floats[:, :6, :6], 2)
    put("normalize", F.normalize(floats[:, :5], [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


decoded()
resized(picture(3, 13, 17))
moved(picture(3, 13, 17))
recolored(picture(3, 13, 17))
save(HERE / "images.safetensors")
