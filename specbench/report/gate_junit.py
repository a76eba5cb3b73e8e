"""A gate as JUnit XML: a test case for every metric of every cell.

A regression is a failure, a cell that is missing an error, an inconclusive one is skipped; a
comparison that is refused is one error. The
format has no schema of its own; this is the part that CI systems agree on.
"""

import xml.etree.ElementTree as ET

from specbench.gate.check import Gate
from specbench.gate.judging import GateVerdict, Judgement
from specbench.report.gate_words import REFUSED, cause_text, chance_note, first_cause, headline, row

_ELEMENTS = {
    GateVerdict.REGRESSION: "failure",
    GateVerdict.MISSING: "error",
    GateVerdict.INCONCLUSIVE: "skipped",
}
_NAME = "specbench check"


def gate_junit(gate: Gate) -> str:
    """An XML document with one test suite."""
    count = {v: sum(j.verdict is v for j in gate.judgements) for v in GateVerdict}
    numbers = {
        "tests": str(len(gate.judgements)),
        "failures": str(count[GateVerdict.REGRESSION]),
        "errors": str(count[GateVerdict.MISSING]),
    }
    root = ET.Element("testsuites", {"name": _NAME, **numbers})
    suite = ET.SubElement(
        root,
        "testsuite",
        {
            "name": _NAME,
            **numbers,
            "skipped": str(count[GateVerdict.INCONCLUSIVE]),
            "timestamp": gate.candidate.origins[0].created_at,
        },
    )
    causes = {found.cell: cause_text(found) for found in gate.attributions}
    for judgement in gate.judgements:
        case = ET.SubElement(
            suite,
            "testcase",
            {
                "classname": _printable(judgement.cell.label),
                "name": judgement.metric,
                "time": "0",
            },
        )
        if judgement.verdict in _ELEMENTS:
            found = ET.SubElement(
                case, _ELEMENTS[judgement.verdict], {"message": _message(gate, judgement)}
            )
            found.text = _printable(causes.get(judgement.cell, ""))
    ET.SubElement(suite, "system-out").text = _printable(
        f"{headline(gate)}\n{chance_note(gate)}".rstrip()
    )
    return _document(root)


def refusal_junit(reason: str) -> str:
    """The same where the two sides must not be compared: one test case that is an error."""
    numbers = {"name": _NAME, "tests": "1", "failures": "0", "errors": "1"}
    root = ET.Element("testsuites", numbers)
    suite = ET.SubElement(root, "testsuite", {**numbers, "skipped": "0"})
    case = ET.SubElement(suite, "testcase", {"classname": _NAME, "name": REFUSED, "time": "0"})
    first, *others = map(str.strip, reason.splitlines())
    message = _printable(" ".join(filter(None, [first, "; ".join(others)])))
    ET.SubElement(case, "error", {"message": message}).text = _printable(reason)
    return _document(root)


def _document(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _message(gate: Gate, judgement: Judgement) -> str:
    shown = row(judgement)
    values = f"{shown.before} -> {shown.after}, {shown.change}, limit {shown.limit}"
    whole = "; ".join(filter(None, (values, judgement.reason)))
    return _printable(f"{whole}{first_cause(gate, judgement)}")


def _printable(text: str) -> str:
    """XML 1.0 has no control characters, escaped or not."""
    return "".join(c for c in text if c in "\t\n" or ord(c) >= 32)
