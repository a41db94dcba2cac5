"""A table on a terminal: whole numbers or none, names cut in the middle, and what had no room by name."""

from __future__ import annotations

import pytest

from aten_dump.report.table import Table, names, numbers, shortened, words

CALLS = ("Aten._scaled_dot_product_flash_attention_for_cpu_backward.1234.backward", "Aten.addmm.7.forward")


def table() -> Table:
    made = Table(names("call"), words("kind", spare=1), names("module", spare=2), numbers("calls"), numbers("NaN"))
    made.add_row(CALLS[0], "producer", "model.encoder.layers.11.attention", 174, 637)
    made.add_row(CALLS[1], "mask", "-", 1, 12345678)
    return made


def test_what_fits_is_as_in_a_pipe() -> None:
    found = table().for_terminal(300)
    assert found.left_out == []
    head, rule, *rows = found.lines
    assert [head, *rows] == list(table().for_pipe()) and set(rule) == {"─"} and len(rule) == len(rows[1])


@pytest.mark.parametrize("width", range(1, 140))
def test_at_every_width_a_number_is_whole_or_its_column_is_named(width: int) -> None:
    found = table().for_terminal(width)
    shown = found.lines[0].split()
    assert sorted(shown + found.left_out) == sorted(column.title for column in table().columns) or width < 4
    assert max(map(len, found.lines)) <= width
    for line, row in zip(found.lines[2:], table().rows, strict=True):
        for title, cell in zip(shown, line.split(), strict=True):
            full = row[[column.title for column in table().columns].index(title)] if width >= 4 else row[0]
            head, mark, tail = cell.partition("…")
            assert cell == full if not mark else full.startswith(head) and full.endswith(tail)


def test_columns_go_by_how_much_they_can_be_spared_and_the_first_stays() -> None:
    order: list[str] = []
    for width in range(150, 0, -1):
        order += [title for title in table().for_terminal(width).left_out if title not in order]
    assert order == ["module", "kind", "NaN", "calls"]


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("Aten.addmm.3.forward", 20, "Aten.addmm.3.forward"),
        (CALLS[0], 28, "Aten._scale…rd.1234.backward"),
        (CALLS[0], 20, "Aten._…1234.backward"),
        (CALLS[0], 14, "Aten.…backward"),
        ("layers.12345", 8, "la…12345"),
        ("12345678", 4, "…"),
        ("name", 1, "…"),
        ("名前名前名前", 7, "名…名前"),
    ],
)
def test_a_name_is_cut_in_the_middle_and_no_number_in_it(text: str, width: int, short: str) -> None:
    assert shortened(text, width) == short
