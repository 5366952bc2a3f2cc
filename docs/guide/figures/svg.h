/*
 * svg.h - boxes, arrows and texts of the guide's figures. Colours are classes, so that one file is
 * readable on a light and on a dark page: it asks the reader's system which of the two.
 */
#ifndef GUIDE_SVG_H
#define GUIDE_SVG_H

#include <stdarg.h>
#include <stdio.h>

#define NONE "none" /* the class of a box without a colour */

static FILE *svg;        /* the figure that is being drawn */
static const char *into; /* the folder of all figures */

/* a, b, c: three colours of boxes; ghost: what is not in memory; used, back: arrows */
static const char style[] =
    "<style>\n"
    ".page{fill:#ffffff}text{fill:#1f2328}.small{font-size:12px;fill:#59636e}\n"
    ".head{font-weight:bold}.none{fill:#f6f8fa;stroke:#8c959f}.a{fill:#cfe5f5;stroke:#0072b2}\n"
    ".b{fill:#fbdfcb;stroke:#d55e00}.c{fill:#cdeee2;stroke:#009e73}\n"
    ".ghost{fill:none;stroke:#8c959f;stroke-dasharray:4 3}\n"
    ".dot{fill:#0072b2}.line,.used{stroke:#59636e;fill:none}.back{stroke:#d55e00;fill:none}\n"
    "text.back{fill:#b14d00;stroke:none}.tip{fill:#59636e}.backtip{fill:#d55e00}\n"
    ".heat{fill:#0072b2}.over{fill:#ffffff}\n"
    "@media (prefers-color-scheme:dark){\n"
    ".page{fill:#0d1117}text{fill:#e6edf3}.small{fill:#9da7b1}.none{fill:#21262d;stroke:#7d8590}\n"
    ".a{fill:#12405e;stroke:#56b4e9}.b{fill:#5e2f0e;stroke:#ff9e57}.c{fill:#0c4a3a;stroke:#3fc79a}"
    "\n"
    ".ghost{stroke:#7d8590}.dot{fill:#56b4e9}.line,.used{stroke:#9da7b1}.back{stroke:#ff9e57}\n"
    "text.back{fill:#ffb27d}.tip{fill:#9da7b1}.backtip{fill:#ff9e57}.heat{fill:#56b4e9}\n"
    ".over{fill:#0d1117}}\n"
    "</style>\n";

static void begin(const char *name, int width, int height, const char *title)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.svg", into, name);
    if (!(svg = fopen(path, "w"))) perror(path), exit(1);
    fprintf(svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox='0 0 %d %d' width='%d' height='%d' "
            "font-family='Helvetica, Arial, sans-serif' font-size='15'>\n<title>%s</title>\n%s"
            "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
            "markerHeight='7' orient='auto'><path class='tip' d='M0 0L8 4L0 8z'/></marker>\n"
            "<marker id='backtip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
            "markerHeight='7' orient='auto'><path class='backtip' d='M0 0L8 4L0 8z'/></marker>"
            "</defs>\n<rect class='page' width='%d' height='%d'/>\n",
            width, height, width, height, title, style, width, height);
}

static void end(void)
{
    fprintf(svg, "</svg>\n");
    if (fclose(svg) != 0) perror(into), exit(1);
}

/* A text in the middle of a place ("start" and "end" in place of "middle": beside it). */
static void text_at(double x, double y, const char *anchor, const char *class, const char *format,
                    ...)
{
    va_list args;
    va_start(args, format);
    fprintf(svg, "<text x='%g' y='%g' text-anchor='%s' class='%s'>", x, y, anchor, class);
    vfprintf(svg, format, args);
    fprintf(svg, "</text>\n");
    va_end(args);
}

static void box(double x, double y, double width, double height, const char *class)
{
    fprintf(svg, "<rect x='%g' y='%g' width='%g' height='%g' rx='3' class='%s'/>\n", x, y, width,
            height, class);
}

/* A box with a number in it. */
static void cell(double x, double y, double size, const char *class, double value)
{
    box(x, y, size, size, class);
    text_at(x + size / 2, y + size / 2 + 5, "middle", "", "%g", value);
}

/* Along a path as SVG writes it; class "used" or "back". */
static void arrow(const char *class, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(svg, "<path class='%s' stroke-width='1.5' marker-end='url(#%s)' d='", class,
            *class == 'b' ? "backtip" : "tip");
    vfprintf(svg, format, args);
    fprintf(svg, "'/>\n");
    va_end(args);
}

#endif
