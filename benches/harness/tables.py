"""Tables, as text for a terminal and as Markdown for a page."""

import dataclasses


@dataclasses.dataclass
class Table:
    """A heading and rows of text; `title` describes the table."""

    title: str
    head: list[str]
    rows: list[list[str]]

    def text(self):
        """Returns the lines for a terminal: words aligned left, numbers aligned right."""
        lines = [[str(cell) for cell in row] for row in [self.head, *self.rows]]
        widths = [max(len(row[at]) for row in lines) for at in range(len(self.head))]
        words = [not all(is_number(row[at]) for row in lines[1:]) for at in range(len(widths))]
        return ["  ".join(cell.ljust(width) if left else cell.rjust(width)
                          for cell, width, left in zip(row, widths, words)).rstrip()
                for row in lines]

    def markdown(self):
        """Returns the lines for a page."""
        lines = ["| " + " | ".join(map(str, row)) + " |" for row in [self.head, *self.rows]]
        return [lines[0], "|" + "---|" * len(self.head), *lines[1:]]

    def without(self, name):
        """Returns the table without a column."""
        at = self.head.index(name)
        head, *rows = [[*row[:at], *row[at + 1:]] for row in [self.head, *self.rows]]
        return Table(self.title, head, rows)


def is_number(text):
    """Returns whether a cell of a table is aligned right."""
    return text == "-" or text.lstrip("-")[:1].isdigit()


def number(value, form=None):
    """Returns a number as text, by default with its significant digits; `-` for no number."""
    if value is None:
        return "-"
    if form:
        return form.format(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def long(summary, title, axes, columns, ratios=(), subjects=None):
    """Returns a table with a row for each cell and subject.

    `axes` has pairs of a title and a function of a cell, `columns` a title, a figure and a form,
    and `ratios` a title, a figure and a base. A list of `subjects` gives their order.
    """
    head = [*(name for name, _ in axes), "subject", *(name for name, _, _ in columns),
            *(name for name, _, _ in ratios)]
    rows = []
    for cell in summary.cells():
        found = summary.subjects(cell)
        for subject in [s for s in subjects or found if s in found]:
            rows.append([*(str(show(cell)) for _, show in axes), subject,
                         *(number(summary.median(cell, subject, figure), form)
                           for _, figure, form in columns),
                         *(number(summary.ratio(cell, subject, base, figure), "{:.2f}")
                           for _, figure, base in ratios)])
    return Table(title, head, rows)


def verdicts(judged):
    """Returns the table of the bars."""
    return Table("bars", ["asked", "limit", "worst", "where", ""],
                 [[one["bar"], one["limit"], number(one["worst"]), one["where"],
                   "met" if one["met"] else "not met"] for one in judged])
