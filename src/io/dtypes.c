/*
 * dtypes.c - numbers as files hold them: the names that each format has for them, and what tenon
 * makes of them. Sources: huggingface/safetensors (its enum Dtype), numpy.lib.format, PyTorch's
 * torch.storage.
 */
#include "io/io.h"

#define NONE (-1)
/* safetensors, PyTorch and NumPy, PyTorch's storage, NumPy's letter, bits, tenon's dtype */
static const tni_file_dtype all[] = {
    { "I64", "int64", "Long", 'i', 64, TN_I64 },
    { "F64", "float64", "Double", 'f', 64, TN_F64 },
    { "F32", "float32", "Float", 'f', 32, TN_F32 },
    { "I32", "int32", "Int", 'i', 32, TN_I32 },
    { "BF16", "bfloat16", "BFloat16", 0, 16, TN_BF16 },
    { "F16", "float16", "Half", 'f', 16, TN_F16 },
    { "U8", "uint8", "Byte", 'u', 8, TN_U8 },
    { "BOOL", "bool", "Bool", 'b', 8, TN_BOOL }, /* up to here in the order of writing */
    { "I8", "int8", "Char", 'i', 8, TN_I32 },
    { "I16", "int16", "Short", 'i', 16, TN_I32 },
    { "U16", "uint16", NULL, 'u', 16, TN_I32 },
    { "U32", "uint32", NULL, 'u', 32, TN_I64 },
    { "U64", "uint64", NULL, 'u', 64, NONE },
    { "C64", "complex64", "ComplexFloat", 'c', 64, NONE },
    { NULL, "complex128", "ComplexDouble", 'c', 128, NONE },
    { "F8_E4M3", "float8_e4m3fn", NULL, 0, 8, NONE },
    { "F8_E5M2", "float8_e5m2", NULL, 0, 8, NONE },
    { "F8_E4M3FNUZ", "float8_e4m3fnuz", NULL, 0, 8, NONE },
    { "F8_E5M2FNUZ", "float8_e5m2fnuz", NULL, 0, 8, NONE },
    { "F8_E8M0", "float8_e8m0fnu", NULL, 0, 8, NONE },
    { NULL, "float4_e2m1fn_x2", NULL, 0, 8, NONE },
    { "F4", NULL, NULL, 0, 4, NONE },
    { "F6_E2M3", NULL, NULL, 0, 6, NONE },
    { "F6_E3M2", NULL, NULL, 0, 6, NONE },
    { NULL, "complex32", "ComplexHalf", 0, 32, NONE },
    { NULL, "bits8", NULL, 0, 8, NONE },
    { NULL, "bits16", NULL, 0, 16, NONE },
    { NULL, "int4", NULL, 0, 8, NONE },
    { NULL, "qint8", "QInt8", 0, 8, NONE },
    { NULL, "quint8", "QUInt8", 0, 8, NONE },
    { NULL, "qint32", "QInt32", 0, 32, NONE },
};

const tni_file_dtype *tni_file_dtype_at(int i)
{
    return i < (int)(sizeof all / sizeof *all) ? &all[i] : NULL;
}

const tni_file_dtype *tni_file_dtype_of(tn_dtype dtype)
{
    int i = 0;
    while (all[i].dtype != (int)dtype) i++;
    return &all[i];
}

bool tni_file_dtype_kept(const tni_file_dtype *d)
{
    return d->dtype != NONE && d == tni_file_dtype_of((tn_dtype)d->dtype);
}

bool tni_file_dtype_wanted(const tni_file_dtype *d, const tn_load_options *o)
{
    return tni_file_dtype_kept(d) || (d->dtype != NONE && o && o->widen);
}

void tni_widen(const tni_file_dtype *d, bool big, const unsigned char *from, char *to, size_t n)
{
    const int size = d->bits / 8, wide = (int)tn_dtype_size((tn_dtype)d->dtype);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        for (int k = 0; k < size; k++)
            bits |= (uint64_t)from[i * (size_t)size + (size_t)(big ? size - 1 - k : k)] << 8 * k;
        if (d->letter == 'i' && size < wide && bits >> (8 * size - 1))
            bits |= UINT64_MAX << 8 * size;
        if (d->letter == 'b') bits = bits != 0;
        memcpy(to + i * (size_t)wide, &bits, (size_t)wide);
    }
}
