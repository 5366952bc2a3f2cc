/*
 * dead.c - TN_DEBUG=1: what was freed is kept for a while, so that a use of it can be named.
 *
 * The objects freed last lie in a ring, each with its message; a map leads from their addresses to
 * them. When an object falls out of the ring, its memory is given back.
 */
#include "base/dead.h"
#include "base/lines.h"
#include "base/map.h"

enum { GRAVES = 1 << 14 };

typedef struct grave {
    void *object;
    size_t size;
    char *epitaph;
    tni_calls *made, *ended; /* or NULL */
} grave;

bool tni_debugging;
static grave ring[GRAVES];
static uint64_t buried;
static tni_map graves, born; /* object -> grave; -> where it was made */
static pthread_mutex_t *const lock = &tni_locks[TNI_LOCK_DEAD];

__attribute__((constructor)) static void read_wish(void)
{
    const char *wish = getenv("TN_DEBUG");
    tni_debugging = wish && strcmp(wish, "1") == 0;
}

/* NULL: lines are off, or there is no memory. */
static tni_calls *line_here(void)
{
    return tni_lines_wanted ? tni_calls_here() : NULL;
}

void tni_note_born(const void *object)
{
    tni_calls *here = line_here();
    pthread_mutex_lock(lock);
    if (here && tni_map_put(&born, object, here) < 0) tni_calls_free(here);
    pthread_mutex_unlock(lock);
}

static void clear(grave *g)
{
    if (!g->object) return;
    tni_map_remove(&graves, g->object);
    tni_free(g->object, g->size);
    tni_strfree(g->epitaph);
    tni_calls_free(g->made);
    tni_calls_free(g->ended);
    *g = (grave){ 0 };
}

void tni_bury(void *object, size_t size, const char *epitaph)
{
    tni_saved_error before;
    if (!tni_debugging) {
        tni_free(object, size);
        return;
    }
    tni_error_save(&before);
    grave new = { object, size, tni_strdup_or_none(epitaph), NULL, line_here() };
    pthread_mutex_lock(lock);
    grave *g = &ring[buried++ % GRAVES];
    clear(g);
    new.made = tni_map_get(&born, object);
    tni_map_remove(&born, object);
    *g = new;
    if (!g->epitaph || tni_map_put(&graves, object, g) < 0) clear(g);
    pthread_mutex_unlock(lock);
    tni_error_restore(&before);
}

static void say_line(char *text, size_t size, const char *what, const tni_calls *where)
{
    char *line = where ? tni_line_text(where) : NULL;
    if (line && line[0]) snprintf(text, size, "%s%s", what, line);
    tni_strfree(line);
}

bool tni_is_buried(const void *object)
{
    char made[300] = "", ended[300] = "";
    pthread_mutex_lock(lock);
    const grave *g = tni_map_get(&graves, object);
    if (g) {
        say_line(made, sizeof made, "; made at ", g->made);
        say_line(ended, sizeof ended, "; gone at ", g->ended);
        tni_error(TN_E_STATE, "%s%s%s", g->epitaph, made, ended);
    }
    pthread_mutex_unlock(lock);
    return g != NULL;
}
