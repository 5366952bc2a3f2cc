/*
 * badfiles_npy.c - NumPy's files of one array: read, written with the same bytes, refused.
 *
 * Truth: golden/npy, made by NumPy (make_npy.py); headers as older writers made them, byte by byte.
 *
 * Seen to fail: in src/ext/pt/npy.c, the sign of short integers not extended; the order of bytes
 * or of axes ignored; a key that stands twice taken; the bytes of bool left as they are; a map that
 * is shared, that begins before the values, or of values in another order.
 */
#include "io/cases.h"

static const char *golden_npy(const char *name)
{
    static char file[64];
    snprintf(file, sizeof file, "npy/%s.npy", name);
    return golden_path(file);
}

/* make_npy.py's element i. */
static double element(char letter, int64_t i)
{
    if (letter == 'b') return i % 3 == 0;
    return (double)(i * 7 % 50 - (letter == 'u' ? 0 : 20));
}

static void assert_elements(tn_tensor *t, char letter, const char *name)
{
    double v[64];
    int64_t n = tn_numel(t);
    assert_ok(tn_copy_out(t, v, (size_t)n * sizeof *v, TN_F64));
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(v[i] == element(letter, i), "%s: element %d is %g", name, (int)i, v[i]);
}

static const struct {
    const char *name;
    tn_dtype dtype;
    char letter;
    tn_shape shape;
    bool written; /* tn_npy_save makes the same bytes */
} forms[] = {
    { "float16", TN_F16, 'f', { 2, { 3, 4 } }, true },
    { "float32", TN_F32, 'f', { 2, { 3, 4 } }, true },
    { "float64", TN_F64, 'f', { 2, { 3, 4 } }, true },
    { "int8", TN_I32, 'i', { 2, { 3, 4 } }, false },
    { "int16", TN_I32, 'i', { 2, { 3, 4 } }, false },
    { "int32", TN_I32, 'i', { 2, { 3, 4 } }, true },
    { "int64", TN_I64, 'i', { 2, { 3, 4 } }, true },
    { "uint8", TN_U8, 'u', { 2, { 3, 4 } }, true },
    { "uint16", TN_I32, 'u', { 2, { 3, 4 } }, false },
    { "uint32", TN_I64, 'u', { 2, { 3, 4 } }, false },
    { "bool", TN_BOOL, 'b', { 2, { 3, 4 } }, true },
    { "big_float32", TN_F32, 'f', { 2, { 3, 4 } }, false },
    { "big_int16", TN_I32, 'i', { 2, { 3, 4 } }, false },
    { "fortran", TN_F64, 'f', { 3, { 2, 3, 4 } }, false },
    { "value", TN_F32, 'f', { 0, { 0 } }, true },
    { "empty", TN_I64, 'i', { 2, { 0, 3 } }, true },
    { "line", TN_F32, 'f', { 1, { 12 } }, true },
    { "version_2", TN_F32, 'f', { 2, { 3, 4 } }, false },
    { "version_3", TN_F32, 'f', { 2, { 3, 4 } }, false },
};

START_TEST(numpy_s_files)
{
    for (int i = 0; i < COUNT(forms); i++) {
        tn_tensor *t = tn_npy_load(golden_npy(forms[i].name));
        assert_made(t);
        ck_assert_msg(tn_dtype_of(t) == forms[i].dtype, "%s", forms[i].name);
        ck_assert_int_eq(tn_rank(t), forms[i].shape.rank);
        for (int d = 0; d < forms[i].shape.rank; d++)
            ck_assert_int_eq(tn_size(t, d), forms[i].shape.size[d]);
        ck_assert(tn_is_contiguous(t));
        assert_elements(t, forms[i].letter, forms[i].name);
        if (!forms[i].written) continue;
        size_t n, m;
        assert_ok(tn_npy_save(t, in_folder("t.npy")));
        char *ours = owned(read_bytes(in_folder("t.npy"), &n));
        char *theirs = owned(read_bytes(golden_npy(forms[i].name), &m));
        ck_assert_msg(n == m && memcmp(ours, theirs, n) == 0, "%s: other bytes", forms[i].name);
    }
}
END_TEST

/* Strides, gradients and history are no hindrance; the axes' order is the tensor's. */
START_TEST(any_tensor_is_saved)
{
    tn_tensor *x = random_as(TN_SHAPE(3, 5), -1, 1, 1, TN_F32);
    tn_set_requires_grad(x, true);
    tn_tensor *t = tn_transpose(tn_mul_scalar(x, 2), 0, 1);
    assert_ok(tn_npy_save(t, in_folder("t.npy")));
    tn_tensor *back = tn_npy_load(in_folder("t.npy"));
    assert_made(back);
    ck_assert_double_eq(tn_max_abs_diff(back, t), 0);
    ck_assert(!tn_requires_grad(back));
}
END_TEST

/* ---- maps ------------------------------------------------------------------------------------ */

/* A map is what is loaded, or refused where values would have to be changed. */
START_TEST(numpy_s_files_mapped)
{
    static const char *const other[] = { "big_float32", "big_int16", "fortran", "int8",
                                         "int16",       "uint16",    "uint32" };
    for (int i = 0; i < COUNT(forms); i++) {
        bool loaded = forms[i].letter == 'b';
        for (int k = 0; k < COUNT(other); k++) loaded |= !strcmp(other[k], forms[i].name);
        tn_tensor *t = tn_npy_map(golden_npy(forms[i].name));
        ck_assert_msg(!t == loaded, "%s: %s", forms[i].name, tn_error());
        if (t) ck_assert_uint_eq(tn_hash(t), tn_hash(tn_npy_load(golden_npy(forms[i].name))));
    }
    assert_null(tn_npy_map(golden_npy("big_int16")), TN_E_FORMAT,
                "big_int16.npy: int16, big-endian: want tn_npy_load for it");
    assert_null(tn_npy_map(golden_npy("fortran")), TN_E_FORMAT, "float64, columns first: want");
    assert_null(tn_npy_map(golden_npy("bool")), TN_E_INVALID, "bool from byte 128 on: want");
    assert_null(tn_npy_map(in_folder("missing.npy")), TN_E_IO, "tn_npy_map: ");
}
END_TEST

START_TEST(raw_rows)
{
    unsigned char bytes[4 + 3 * 4];
    for (int i = 0; i < COUNT(bytes); i++) bytes[i] = (unsigned char)(i * 10);
    const char *path = write_bytes("raw", bytes, sizeof bytes);
    tn_tensor *t = tn_raw_map(path, 4, TN_SHAPE(2, 2), TN_U8);
    assert_made(t);
    ck_assert_int_eq(tn_rank(t), 3);
    ck_assert_int_eq(tn_size(t, 0), 3);
    ck_assert_int_eq(memcmp(tn_data(t), bytes + 4, 12), 0);
    float third;
    memcpy(&third, bytes + 12, 4);
    ck_assert_float_eq((float)tn_at(tn_raw_map(path, 4, TN_SCALAR, TN_F32), TN_INDEX(2)), third);
    /* values are read when they are looked at; what is written stays here */
    tn_tensor *later = tn_raw_map(path, 0, TN_SHAPE(16), TN_U8);
    bytes[5] = 77;
    FILE *file = fopen(path, "r+b");
    ck_assert(file && fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes && !fclose(file));
    ck_assert_double_eq(tn_at(later, TN_INDEX(0, 5)), 77);
    assert_ok(tn_fill_(later, 3));
    size_t n;
    const char *now = owned(read_bytes(path, &n));
    ck_assert(n == sizeof bytes && memcmp(now, bytes, n) == 0);
    /* a loader has the rows, the file may be gone */
    tn_loader *l =
        owned(tn_loader_new(&t, 1, (tn_loader_options){ .batch_size = 2, .workers = 1 }));
    ck_assert_int_eq(remove(path), 0);
    tn_tensor *batch;
    for (int i = 0; i < 2; i++) ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
    ck_assert_double_eq(tn_at(batch, TN_INDEX(0, 1, 1)), 150);
}
END_TEST

START_TEST(maps_refused)
{
    const char *path = write_bytes("raw", "0123456789", 10);
    const tn_shape all = { TN_MAX_RANK, { 1, 1, 1, 1, 1, 1, 1, 1 } };
#define WHOLE " on: want whole ones of 3"
    assert_null(tn_raw_map(path, 0, TN_SHAPE(3), TN_U8), TN_E_FORMAT,
                "raw: 10 bytes, rows from 0" WHOLE);
    assert_null(tn_raw_map(path, 10, TN_SHAPE(3), TN_U8), TN_E_FORMAT,
                "raw: 10 bytes, rows from 10" WHOLE);
    assert_null(tn_raw_map(path, 22, TN_SHAPE(3), TN_U8), TN_E_FORMAT,
                "raw: 10 bytes, rows from 22" WHOLE);
    assert_null(tn_raw_map(path, 2, TN_SHAPE(2), TN_F32), TN_E_INVALID, "f32 from byte 2 on: want");
    assert_null(tn_raw_map(path, 0, TN_SHAPE(2), TN_BOOL), TN_E_INVALID, "bool from byte 0 on");
    assert_null(tn_raw_map(path, -1, TN_SHAPE(2), TN_U8), TN_E_INVALID, "skip -1, rows of [2] u8");
    assert_null(tn_raw_map(path, 0, TN_SHAPE(0), TN_U8), TN_E_INVALID, "rows of [0] u8: want");
    assert_null(tn_raw_map(path, 0, all, TN_U8), TN_E_INVALID, "at most 7 sizes >= 1");
    assert_null(tn_raw_map(path, 0, TN_SHAPE(-2), TN_U8), TN_E_SHAPE, "tn_raw_map: ");
    assert_null(tn_raw_map(path, 0, TN_SHAPE(2), (tn_dtype)99), TN_E_INVALID, "rows of [2]");
    assert_null(tn_raw_map(folder, 0, TN_SHAPE(2), TN_U8), TN_E_IO, "is a folder");
    assert_null(tn_raw_map(NULL, 0, TN_SHAPE(2), TN_U8), TN_E_INVALID, "path is NULL");
}
END_TEST

/* ---- headers --------------------------------------------------------------------------------- */

static const char *file_of(const char *header, size_t values, int byte)
{
    unsigned char bytes[10 + 600 + 64] = { 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0 };
    size_t n = strlen(header);
    bytes[8] = (unsigned char)(n & 255);
    bytes[9] = (unsigned char)(n >> 8);
    memcpy(bytes + 10, header, n);
    for (size_t i = 0; i < values; i++) bytes[10 + n + i] = (unsigned char)byte;
    return write_bytes("f.npy", bytes, 10 + n + values);
}

START_TEST(headers_of_other_writers)
{
    static const char *const fine[] = {
        "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}",
        "{\"descr\":\"f4\",\"fortran_order\":True,\"shape\":(2,),}",
        "{'descr': 'float32', 'fortran_order': False, 'shape': (2L,), }\n",
        "  {\t'descr' : '=f4' , 'fortran_order' : False , 'shape' : ( 2 , ) , }   \n",
    };
    for (int i = 0; i < COUNT(fine); i++) {
        tn_tensor *t = tn_npy_load(file_of(fine[i], 8, 0));
        assert_made(t);
        ck_assert_int_eq(tn_size(t, 0), 2);
    }
    /* any byte but 0 is true */
    tn_tensor *b =
        tn_npy_load(file_of("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", 2, 2));
    assert_made(b);
    ck_assert_int_eq(((const unsigned char *)tn_data(b))[1], 1);
}
END_TEST

START_TEST(npy_refused)
{
#define DICT "the header is no dict of descr, fortran_order and a shape of 0 to 8 sizes"
    static const struct {
        const char *header;
        size_t values;
        const char *text;
    } rows[] = {
        { "", 0, DICT },
        { "{}", 0, DICT },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, DICT },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8, DICT },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", 8, DICT },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8, DICT },
        { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, DICT },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}", 8, DICT },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, DICT },
        { "{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", 8,
          "the key descr: want descr, fortran_order and shape, once" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}", 8,
          "the key more: want descr, fortran_order and shape, once" },
        { "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8,
          "records of several fields: want one number for each value" },
        { "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", 8,
          "its values are Python objects: want numbers" },
        { "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8,
          "dtype complex64: want float16 to 64, int8 to 64, uint8 to 32, bool" },
        { "{'descr': '<u8', 'fortran_order': False, 'shape': (1,)}", 8,
          "dtype uint64: want float16 to 64, int8 to 64, uint8 to 32, bool" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 7,
          "[2] of float32 are 8 bytes, the file has 7 behind its header" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 9,
          "[2] of float32 are 8 bytes, the file has 9 behind its header" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", 0,
          "[4611686018427387904,4]: the sizes overflow" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        const char *path = file_of(rows[i].header, rows[i].values, 0);
        ck_assert_msg(!tn_npy_load(path), "%s", rows[i].header);
        check_error(rows[i].header, "tn_npy_load", path, TN_E_FORMAT, rows[i].text);
    }
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } files[] = {
        { "", 0, "no \\x93NUMPY at first: want a .npy file" },
        { "\x93NUMPY\1\0\5", 9, "no \\x93NUMPY at first: want a .npy file" },
        { "PK\3\4 an archive", 15,
          "an archive (.npz, .pt, .zip): want tn_load_tensors for it: want a .npy file" },
        { "<html>\n<head>", 13,
          "a page of HTML or XML, as a failed download leaves: want a .npy file" },
        { "\x93NUMPY\1\1\0\0", 10, "version 1.1: want 1.0, 2.0 or 3.0" },
        { "\x93NUMPY\1\0\5\0abcd", 14, "a header of 5 bytes: want at most 65535, within the file" },
        { "\x93NUMPY\1\0\4\0{}\0x", 14, DICT },
        { "\x93NUMPY\1\0\x3a\0{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} \0x\7", 69,
          DICT },
        { "\x93NUMPY\2\0\5\0\0\xff", 12,
          "a header of 4278190085 bytes: want at most 65535, within the file" },
    };
    for (int i = 0; i < COUNT(files); i++) {
        const char *path = write_bytes("f.npy", files[i].bytes, files[i].n);
        ck_assert_msg(!tn_npy_load(path), "%s", files[i].text);
        check_error(files[i].text, "tn_npy_load", path, TN_E_FORMAT, files[i].text);
    }
    tn_tensor *t = tn_ones(TN_SHAPE(2));
    assert_fails(tn_npy_save(tn_to_dtype(t, TN_BF16), in_folder("t.npy")), TN_E_DTYPE,
                 "is bf16, which NumPy has not");
    assert_fails(tn_npy_save(TN_NONE, in_folder("t.npy")), TN_E_INVALID, "tn_npy_save");
    assert_fails(tn_npy_save(t, NULL), TN_E_INVALID, "tn_npy_save");
    assert_fails(tn_npy_save(t, in_folder("none/t.npy")), TN_E_IO, "none/t.npy");
    assert_null(tn_npy_load(in_folder("missing.npy")), TN_E_IO, "missing.npy");
    assert_null(tn_npy_load(NULL), TN_E_INVALID, "tn_npy_load");
}
END_TEST

void badfiles_npy_cases(Suite *suite)
{
    TCase *t = file_case(suite, "npy");
    tcase_add_test(t, numpy_s_files);
    tcase_add_test(t, any_tensor_is_saved);
    tcase_add_test(t, numpy_s_files_mapped);
    tcase_add_test(t, raw_rows);
    tcase_add_test(t, maps_refused);
    tcase_add_test(t, headers_of_other_writers);
    tcase_add_test(t, npy_refused);
}
