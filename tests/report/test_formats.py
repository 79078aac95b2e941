"""Markdown, LaTeX and CSV say what the table says, in their own characters."""

import csv
import io
import shutil
import subprocess

import pytest

from fedclass.report.formats import latex, markdown, runs_csv
from fedclass.report.tables import Table

LATEX = shutil.which("pdflatex")

TABLE = Table(
    title="synnum {5,5}, 100 %",
    columns=("method (variant)", "global"),
    rows=(("my_mod:A|B (standard)", "-2.0 ± 0.7"), ("fedclass (paper) x=1e-05", "[-1.0, +2.0]")),
    notes=("A note.", "Another."),
)


def test_markdown():
    assert markdown(TABLE) == (
        "### synnum {5,5}, 100 %\n"
        "\n"
        "| method (variant) | global |\n"
        "| --- | ---: |\n"
        "| my_mod:A\\|B (standard) | -2.0 ± 0.7 |\n"
        "| fedclass (paper) x=1e-05 | [-1.0, +2.0] |\n"
        "\n"
        "A note.\n"
        "\n"
        "Another.\n"
    )


def test_latex_is_escaped_and_has_real_minus_signs():
    assert latex(TABLE).splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Drawn digits \{5,5\}, 100 \%}",
        r"\label{tab:synnum-5-5-100}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"method (variant) & global \\",
        r"\midrule",
        r"my\_mod:A\textbar{}B & $-$2.0 $\pm$ 0.7 \\",
        r"FedCLASS (paper) x=1e-05 & [$-$1.0, +2.0] \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize",
        "A note.",
        "Another.",
        r"\end{table}",
    ]


def test_no_character_of_a_name_is_left_to_latex():
    table = Table("t", (r"a\b~c^d<e>f&g#h$i",), (), ())
    assert r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\textless{}e\textgreater{}f\&g\#h\$i \\" in latex(
        table
    )


SEEDS = Table(
    title="cifar10 {5,5}, seeds 0, 1: mean ± deviation",
    columns=("method (variant)", "task 1", "task 2", "global", "forgetting"),
    rows=(
        ("fedavg (standard)", "9.5 ± 0.1", "80.0 ± 1.0", "44.8 ± 0.5", "60.0 ± 2.0"),
        ("fedclass (paper)", "30.0 ± 3.0", "80.0 ± 2.0", "55.0 ± 0.5", "-1.0 ± 9.0"),
        ("mine:Own (standard)", "-", "7.0 ± 2.0", "5.0 ± 0.5", "1.0 ± 9.0"),
        ("joint (bound, all images)", "91.0 ± 0.2", "93.0 ± 0.1", "92.0 ± 0.1", "-3.0 ± 0.1"),
    ),
    notes=(),
)


def test_latex_shows_the_best_of_several_seeds_in_bold():
    """By the number, not by its letters; ties are all best; of forgetting, the lowest is. The bound is none."""
    text = latex(SEEDS)
    assert [line for line in text.splitlines() if line.endswith(r"\\")][1:] == [
        r"FedAvg & 9.5 $\pm$ 0.1 & \textbf{80.0 $\pm$ 1.0} & 44.8 $\pm$ 0.5 & 60.0 $\pm$ 2.0 \\",
        r"FedCLASS (paper) & \textbf{30.0 $\pm$ 3.0} & \textbf{80.0 $\pm$ 2.0} & \textbf{55.0 $\pm$ 0.5} & "
        r"\textbf{$-$1.0 $\pm$ 9.0} \\",
        r"mine:Own & - & 7.0 $\pm$ 2.0 & 5.0 $\pm$ 0.5 & 1.0 $\pm$ 9.0 \\",
        r"joint (bound, all images) & 91.0 $\pm$ 0.2 & 93.0 $\pm$ 0.1 & 92.0 $\pm$ 0.1 & $-$3.0 $\pm$ 0.1 \\",
    ]
    assert r"\caption{CIFAR-10 \{5,5\}, seeds 0, 1: mean $\pm$ deviation}" in text
    assert r"\label{tab:cifar10-5-5-seeds-0-1}" in text
    assert r"\caption{Differences from FedAvg (paper), 2}" in latex(
        Table("Differences from fedavg (paper), 2", ("",), (), ())
    )
    one = Table(SEEDS.title, SEEDS.columns, tuple(tuple(c.split(" ±")[0] for c in row) for row in SEEDS.rows), ())
    assert "textbf" not in latex(one), "one seed ranks nothing"


@pytest.mark.slow
@pytest.mark.skipif(LATEX is None, reason="needs LaTeX; to have it: apt-get install texlive-latex-recommended")
def test_latex_compiles_and_fits_a_page_of_two_columns(tmp_path):
    wide = Table("w", tuple(f"task {i}" for i in range(1, 12)), (("98.7 ± 0.1",) * 11,), ("100 % & more_",))
    assert r"\begin{table*}" in latex(wide)
    five = ("fedicarl (icarl, sigmoids)", *("98.7 ± 10.1",) * 7)
    names = ("method (variant)", *(f"task {i}" for i in range(1, 6)), "global", "forgetting")
    many = ("method (variant)", *(f"task {i}" for i in range(1, 11)), "global", "forgetting")
    ten = ("fedicarl (icarl, sigmoids), seeds 0, 1", *("98.7 ± 10.1",) * 12)
    made = [Table("five", names, (five, five), ()), Table("ten", many, (ten, ten), ())]
    assert latex(made[0]).count(r"\begin{tabular}") == 1
    assert latex(made[1]).count(r"\begin{tabular}") == 2
    assert latex(made[1]).count("task 7") == 1
    tables = "\n".join(map(latex, (TABLE, SEEDS, wide, *made)))
    (tmp_path / "paper.tex").write_text(
        "\\documentclass[twocolumn]{article}\n\\usepackage[utf8]{inputenc}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"Table~\\ref{{tab:cifar10-5-5-seeds-0-1}}.\n{tables}\\end{{document}}\n"
    )
    words = [str(LATEX), "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(2):  # references are known the second time
        built = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace")
        assert built.returncode == 0, built.stdout
    assert "undefined" not in built.stdout
    assert "Overfull" not in built.stdout, "as wide as the page, or less"
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_a_line_per_run_with_full_figures_and_paired_differences(result):
    third = 100 / 3
    runs = [
        result("fedavg", 0, overall=third, last=(third, 2.0)),
        result("fedavg", 1, overall=50.0),
        result("fedclass", 0, overall=60.1, config={"method": {"beta": 3.0}}),
        result("fedclass", 1, overall=40.0, forgetting=None, config={"method": {"beta": 3.0}}),
        result("fedclass", 0, overall=70.0, config={"method": {"beta": 8.0}}),
        result("fedclass", 1, overall=90.0, config={"method": {"beta": 8.0}}),
    ]
    lines = read(runs_csv(runs, against="fedclass:beta=3"))
    assert [line["label"] for line in lines] == [
        label for label in ("fedavg (paper)", "fedclass (paper) beta=3", "fedclass (paper) beta=8") for _ in range(2)
    ]
    assert [line["seed"] for line in lines] == ["0", "1"] * 3
    assert [line["method.beta"] for line in lines] == ["", "", "3", "3", "8", "8"]
    assert "train.rounds" not in lines[0], "the same in all runs"
    assert float(lines[0]["accuracy_last"]) == third
    assert float(lines[0]["accuracy_task_1"]) == third
    assert {line["reference"] for line in lines} == {"fedclass (paper) beta=3"}
    assert [float(line["difference_accuracy_last"]) for line in lines] == [
        third - 60.1,
        10.0,
        0.0,
        0.0,
        70.0 - 60.1,
        50,
    ]
    assert [line["difference_forgetting_fedclass"] for line in lines] == ["0.0", "", "0.0", "", "0.0", ""]
    assert [line["run"] for line in lines] == [str(run.path) for run in runs]
    assert lines[0]["tasks"] == "5,5"


def test_csv_of_several_streams_has_one_head_and_empty_cells(result):
    runs = [result(last=(1.0, 2.0)), result(last=(3.0, 4.0, 5.0))]
    lines = read(runs_csv(runs))
    assert [(line["tasks"], line["accuracy_task_3"]) for line in lines] == [("5,5", ""), ("5,5,5", "5.0")]
    assert "reference" not in lines[0], "no stream has two rows"


def test_csv_without_differences_takes_runs_with_other_seeds(result):
    lines = read(runs_csv([result("fedavg", 0), result("fedwa", 1)], differences=False))
    assert [line["method"] for line in lines] == ["fedavg", "fedwa"]
    assert not any(column.startswith("difference") for column in lines[0])


def test_csv_has_test_figures_of_the_row_that_validation_images_chose_alone(result):
    def validated(method, validation, test):
        figures = {"accuracy_matrix": [[90.0], [validation, 80.0]], "accuracy_last": validation}
        own = {f"validation_{key}": value for key, value in figures.items()}
        return result(method, overall=test, validation_forgetting_fedclass=1.0, bwt=-3.0, **own)

    runs = [validated("fedavg", 50.0, 77.0), validated("fedwa", 60.0, 44.0)]
    first, second = read(runs_csv(runs))
    test_figures = ("accuracy_last", "accuracy_task_1", "forgetting_fedclass", "bwt")
    assert [first[key] for key in test_figures] == [""] * 4
    assert [second[key] for key in test_figures] == ["44.0", "40.0", "20.0", "-3.0"]
    assert (first["validation_accuracy_task_1"], second["validation_accuracy_last"]) == ("50.0", "60.0")
    assert second["difference_validation_accuracy_last"] == "10.0"
    assert "difference_accuracy_last" not in second
    assert "77.0" not in runs_csv(runs)
    first, second = read(runs_csv(runs, differences=False))  # some runs are missing: nothing is chosen
    assert (first["accuracy_last"], second["accuracy_last"]) == ("", "")
