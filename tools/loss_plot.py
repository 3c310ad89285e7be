"""Loss curves as an SVG picture, with the events of a run and its members below; no library."""

from html import escape
import math

WIDTH, HEIGHT = 960, 540
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 64, 120  # margins; the members stand in the lower one
COLOURS = {"loss": "#c2410c", "resize": "#2563eb", "text": "#1f2937", "grid": "#e5e7eb",
           "run": "#1d4ed8", "beside": "#94a3b8", "members": "#a7f3d0"}


def ticks(low, high, count):
    """About so many round numbers from low to high."""
    raw = (high - low) / max(1, count)
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


class Axes:
    """From steps and losses to places in the picture."""

    def __init__(self, steps, losses):
        self.last = max(2, max(steps))
        low, high = min(losses), max(losses)
        margin = 0.05 * (high - low) or 1
        self.low, self.high = low - margin, high + margin

    def x(self, step):
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / (self.last - 1)

    def y(self, loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - loss) / (self.high - self.low)


def text(x, y, words, anchor="middle", size=13, colour=None, extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour or COLOURS["text"]}"{extra}>{escape(words)}</text>')


def line(x1, y1, x2, y2, colour, width=1.0, dash=""):
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dashes}/>')


def curve(axes, points, colour, width):
    places = " ".join(f"{axes.x(step):.1f},{axes.y(loss):.1f}" for step, loss in points)
    return (f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}" '
            'stroke-linejoin="round"/>')


def frame(axes):
    bottom = HEIGHT - BOTTOM
    for loss in ticks(axes.low, axes.high, 6):
        yield line(LEFT, axes.y(loss), WIDTH - RIGHT, axes.y(loss), COLOURS["grid"])
        yield text(LEFT - 8, axes.y(loss) + 4, f"{loss:g}", "end")
    for step in ticks(1, axes.last, 8):
        yield text(axes.x(step), HEIGHT - 12, f"{step:g}")
    yield text(WIDTH - RIGHT, HEIGHT - 28, "step", "end", 12)
    yield text(18, (TOP + bottom) / 2, "loss", size=13,
               extra=f' transform="rotate(-90 18 {(TOP + bottom) / 2:.1f})"')
    yield line(LEFT, bottom, WIDTH - RIGHT, bottom, COLOURS["text"])


def members_strip(axes, members):
    """How many there were, as bars below the curves. `members` is a list of (step, count)."""
    top, bottom = HEIGHT - BOTTOM + 22, HEIGHT - 42
    most = max(count for _, count in members)
    runs = []
    for step, count in members:
        if runs and runs[-1][2] == count:
            runs[-1][1] = step
        else:
            runs.append([step, step, count])
    for index, (first, last, count) in enumerate(runs):
        end = runs[index + 1][0] if index + 1 < len(runs) else last
        high = (bottom - top) * count / most
        yield (f'<rect x="{axes.x(first):.1f}" y="{bottom - high:.1f}" height="{high:.1f}" '
               f'width="{max(1.0, axes.x(end) - axes.x(first)):.1f}" '
               f'fill="{COLOURS["members"]}"/>')
        if axes.x(end) - axes.x(first) > 12:
            yield text((axes.x(first) + axes.x(end)) / 2, bottom - 4, str(count), size=12)
    yield text(LEFT - 8, bottom - 4, "workers", "end", 12)


def marks(axes, events):
    for index, (step, kind, words) in enumerate(events):
        x = axes.x(step)
        colour = COLOURS["loss" if kind == "loss" else "resize"]
        yield line(x, TOP - 4, x, HEIGHT - 42, colour, 1.3, "5 4")
        yield text(x + 5, TOP + 10 + 17 * (index % 3), words, "start", 12, colour)


def picture(title, run, beside, events):
    """The SVG as text. `run` and `beside` are a name and a list of (step, loss, members) each;
    events are (step, kind, words), where the kind "loss" stands out."""
    name, rows = run
    other, other_rows = beside
    axes = Axes([row[0] for row in rows + other_rows], [row[1] for row in rows + other_rows])
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             text(LEFT, 24, title, "start", 16, extra=' font-weight="bold"')]
    parts += frame(axes)
    parts += members_strip(axes, [(row[0], row[2]) for row in rows])
    parts += marks(axes, events)
    parts.append(curve(axes, [row[:2] for row in other_rows], COLOURS["beside"], 5))
    parts.append(curve(axes, [row[:2] for row in rows], COLOURS["run"], 1.4))
    for place, (words, colour, width) in enumerate(((name, COLOURS["run"], 1.4),
                                                     (other, COLOURS["beside"], 5))):
        x = LEFT + 330 * place
        parts.append(line(x, 42, x + 34, 42, colour, width))
        parts.append(text(x + 42, 46, words, "start"))
    return "\n".join(parts) + "\n</svg>\n"
