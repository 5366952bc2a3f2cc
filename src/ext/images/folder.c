/* folder.c - the image files of a folder of folders, each of which is a class. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <strings.h>

#include "ext/images/images.h"
#include "io/file.h"

typedef struct folder {
    tn_image_folder f; /* first: the caller's pointer is ours */
    tn_image_file *image;
    char **name; /* of classes */
    size_t images, classes, image_room, name_room;
    char path[PATH_MAX]; /* where we are */
} folder;

static tn_status refused(const folder *x, tn_status status, const char *why)
{
    return tni_file_error(status, "tn_image_folder_open", x->path, "%s", why);
}

/* The path of n characters with a name behind; its length, 0 if that is too long. */
static size_t enter(folder *x, size_t n, const char *name)
{
    const size_t longer = n + (size_t)snprintf(x->path + n, sizeof x->path - n, "/%s", name);
    return longer < sizeof x->path ? longer : 0;
}

/* Whether what opendir refused is another file, or a link to nothing. */
static bool no_folder(void)
{
    return errno == ENOTDIR || errno == ENOENT;
}

static tn_status add_class(folder *x, size_t n, const char *name)
{
    errno = ENAMETOOLONG;
    DIR *inner = enter(x, n, name) ? opendir(x->path) : NULL;
    if (!inner) return no_folder() ? TN_OK : refused(x, tni_errno(errno), strerror(errno));
    closedir(inner);
    if (!tni_room(&x->name, &x->name_room, x->classes, 1, sizeof *x->name)) return TN_E_NOMEM;
    char *copy = x->name[x->classes] = tni_strdup(name);
    x->classes += copy != NULL;
    return copy ? TN_OK : TN_E_NOMEM;
}

static tn_status add_image(folder *x)
{
    if (!tni_room(&x->image, &x->image_room, x->images, 1, sizeof *x->image)) return TN_E_NOMEM;
    char *copy = tni_strdup(x->path);
    x->image[x->images] = (tn_image_file){ copy, x->f.n_classes };
    x->images += copy != NULL;
    return copy ? TN_OK : TN_E_NOMEM;
}

static bool is_image(const char *name)
{
    const char *e = strrchr(name, '.');
    return e && (!strcasecmp(e, ".png") || !strcasecmp(e, ".jpg") || !strcasecmp(e, ".jpeg"));
}

/* The classes in the folder at the path of n characters, or the images in it and below it. */
static tn_status find(folder *x, size_t n, bool classes)
{
    DIR *dir = opendir(x->path);
    if (!dir && !classes && no_folder()) return TN_OK;
    if (!dir) return refused(x, tni_errno(errno), strerror(errno));
    tn_status status = TN_OK;
    for (const struct dirent *e; status == TN_OK && (errno = 0, e = readdir(dir)); x->path[n] = 0) {
        if (e->d_name[0] == '.') continue;
        size_t longer = 0;
        if (classes)
            status = add_class(x, n, e->d_name);
        else if (!(longer = enter(x, n, e->d_name)))
            status = refused(x, TN_E_IO, strerror(ENAMETOOLONG));
        else
            status =
                is_image(e->d_name) && e->d_type != DT_DIR ? add_image(x) : find(x, longer, false);
    }
    if (status == TN_OK && errno) status = refused(x, tni_errno(errno), strerror(errno));
    closedir(dir);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* By class, then by folder, then by name. */
static int by_place(const void *a, const void *b)
{
    const tn_image_file *p = a, *q = b;
    if (p->label != q->label) return p->label < q->label ? -1 : 1;
    const size_t n = (size_t)(strrchr(p->path, '/') - p->path);
    const size_t m = (size_t)(strrchr(q->path, '/') - q->path);
    const int folders = memcmp(p->path, q->path, TNI_MIN(n, m));
    return folders ? folders : n != m ? (n < m ? -1 : 1) : strcmp(p->path, q->path);
}

static tn_status find_all(folder *x, size_t n)
{
    TNI_TRY(find(x, n, true));
    tni_sort(x->name, x->classes, sizeof *x->name, by_name);
    if (x->classes == 0)
        return refused(x, TN_E_FORMAT, "no folders in it: want one for each class");
    for (; x->f.n_classes < (int64_t)x->classes; x->f.n_classes++, x->path[n] = 0) {
        const size_t before = x->images;
        TNI_TRY(find(x, enter(x, n, x->name[x->f.n_classes]), false));
        if (x->images == before)
            return refused(x, TN_E_FORMAT, "no .png, .jpg or .jpeg in it or below");
    }
    tni_sort(x->image, x->images, sizeof *x->image, by_place);
    x->f.class_name = (const char *const *)x->name;
    x->f.image = x->image;
    x->f.n = (int64_t)x->images;
    return TN_OK;
}

tn_image_folder *tn_image_folder_open(const char *path)
{
    if (tni_path_check(__func__, path) != TN_OK) return NULL;
    folder *x = tni_calloc(sizeof *x);
    if (!x) return NULL;
    size_t n = (size_t)snprintf(x->path, sizeof x->path, "%s", path);
    while (n > 1 && n < sizeof x->path && x->path[n - 1] == '/') x->path[--n] = 0;
    if ((n < sizeof x->path ? find_all(x, n) : refused(x, TN_E_IO, strerror(ENAMETOOLONG))) ==
        TN_OK)
        return &x->f;
    tn_image_folder_free(&x->f);
    return NULL;
}

void tn_image_folder_free(tn_image_folder *f)
{
    folder *x = (void *)f;
    if (!x) return;
    while (x->images > 0) tni_strfree((char *)x->image[--x->images].path);
    while (x->classes > 0) tni_strfree(x->name[--x->classes]);
    tni_room_free(&x->image, &x->image_room, sizeof *x->image);
    tni_room_free(&x->name, &x->name_room, sizeof *x->name);
    tni_free(x, sizeof *x);
}
