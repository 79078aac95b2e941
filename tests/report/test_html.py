"""The page: every number is the one that the events give, whatever is missing is said, and nothing is markup."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest

from commands import called
from fedclass import metrics
from fedclass.errors import RunError
from fedclass.report import client_charts, curve_charts, style
from fedclass.report.groups import group
from fedclass.report.history import read_history
from fedclass.report.html import build, remarks, reuses, write_report
from fedclass.report.rendering import FORMATS
from fedclass.runs.events import (
    RoundFinished,
    RunResumed,
    RunStarted,
    TaskFinished,
    TaskReused,
    UpdateRejected,
    Warned,
)
from fedclass.runs.find import find_all
from fedclass.runs.order import Order


class Page(HTMLParser):
    """What a reader sees: tables by title, figures by id, the words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.figures: list[str] = []
        self.labels: list[str] = []
        self.regions: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self._cell: list[str] | None = None
        self.looks = {label: slot for slot, label in re.findall(r'var\(--c(\d)\)"></span>([^<]+)', text)}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        about = dict(attributes)
        self.tags.append(tag)
        if "id" in about:
            self.ids.append(about["id"])
        if tag == "table":
            self._rows: list[list[str]] = []
            self.tables.setdefault(about["aria-label"], []).append(self._rows)
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._cell = []
        elif tag == "figure":
            self.figures.append(about["id"])
        elif tag == "section" and "aria-label" in about:
            self.regions.append(about["aria-label"])
        elif tag == "svg":
            assert about["role"] == "img"
            self.labels.append(about["aria-label"])

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._rows[-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.words.append(data)
        if self._cell is not None:
            self._cell.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def table(self, title: str) -> list[list[str]]:
        (found,) = self.tables[title]
        return found


def page_of(*paths) -> Page:
    return Page(build([read_history(path) for path in find_all(paths)]).page)


def confusions(events):
    return [event.confusion for event in events if isinstance(event, TaskFinished)]


def percent(values):
    return [f"{value:.1f}" for value in values]


ALL = [
    *("accuracy-matrix", "accuracy-over-rounds", "forgetting-over-rounds", "accuracy-over-tasks"),
    *(
        "forgetting-over-tasks",
        "loss-over-rounds",
        "classes",
        "confusion",
        "partition",
        "clients",
        "client-accuracy",
        "bytes",
        "time",
    ),
]

# One run.


@pytest.fixture(scope="module")
def one(told, written, tmp_path_factory):
    events = told()
    return events, page_of(written(tmp_path_factory.mktemp("one") / "run", events))


def test_every_figure_is_there_once_with_words_for_those_who_do_not_see_it(one):
    _, page = one
    assert page.figures == ALL
    assert len(page.labels) == len(ALL)
    assert all(len(label) > 40 for label in page.labels)
    assert page.tags.count("script") == 0


def test_ids_are_unique_over_all_figures(one):
    _, page = one
    assert len(page.ids) > 200
    assert len(set(page.ids)) == len(page.ids)


def test_the_headline_is_that_of_the_metrics(one):
    events, page = one
    summary = metrics.summarise(confusions(events), [2, 3])
    for name, key in (
        ("Global accuracy", "accuracy_last"),
        ("Class-balanced", "accuracy_last_macro"),
        ("Incremental", "accuracy_average_incremental"),
    ):
        assert f"{name} {summary[key]:.1f} %" in page.text
    assert f"Forgetting {summary['forgetting_fedclass']:.1f} points" in page.text
    assert "fedclass (paper) on synnum" in page.text
    assert "synnum, 5 classes · tasks {2,3} · 3 clients · 2 rounds per task · seed 0" in page.text
    assert "Time 10.0 s 4 of 4 rounds" in page.text


def test_the_accuracy_matrix(one):
    events, page = one
    first, second = metrics.summarise(confusions(events), [2, 3])["accuracy_matrix"]
    matrix, _ = page.tables["Accuracy in percent"]
    assert matrix == [
        ["", "on task 1", "on task 2"],
        ["after task 1", *percent(first), ""],
        ["after task 2", *percent(second)],
    ]


def test_curves_over_rounds(one):
    events, page = one
    _, rows = page.tables["Accuracy in percent"]
    assert rows[0] == ["round", "all classes so far", "task 1", "task 2"]
    tested = next(event for event in events if isinstance(event, RoundFinished) and event.task == 1 and event.correct)
    right = [100 * c / t for c, t in zip(tested.correct, tested.tested, strict=True)]
    assert rows[3] == ["3", *percent([tested.accuracy, mean(right[:2]), mean(right[2:])])]
    last = confusions(events)[-1]
    assert rows[4] == ["4", *percent([metrics.accuracy_micro(last), *metrics.accuracy_row(last, [2, 3])])]
    (learned,) = metrics.accuracy_row(confusions(events)[0], [2, 3])
    over_rounds, over_tasks = page.tables["forgetting (points)"]
    assert over_rounds[1] == ["3", *percent([learned - mean(right[:2])])]
    assert over_tasks[1:] == [["2", *percent([learned - metrics.accuracy_row(last, [2, 3])[0]])]]
    losses = [event.loss for event in events if isinstance(event, RoundFinished)]
    assert [row[1] for row in page.table("loss")[1:]] == [f"{loss:.3f}" for loss in losses]


def test_classes_when_learned_and_now(one):
    events, page = one
    first, last = confusions(events)
    learned = [*metrics.class_accuracy(first), *metrics.class_accuracy(last, range(2, 5))]
    now = metrics.class_accuracy(last)
    assert page.table("Accuracy per class, in percent")[1:] == [
        [f"class {c}", "1" if c < 2 else "2", *percent([was, is_]), f"{is_ - was:+.1f}"]
        for c, (was, is_) in enumerate(zip(learned, now, strict=True))
    ]


@pytest.mark.filterwarnings("error")
def test_a_class_without_test_images_and_counts_that_sites_withhold(made, told):
    events = told(tasks=(2, 3))
    for number, event in enumerate(events):
        if isinstance(event, TaskFinished):
            events[number] = replace(
                event, confusion=[[0] * len(row) if i == 1 else row for i, row in enumerate(event.confusion)]
            )
        if isinstance(event, RunStarted):
            events[number] = replace(event, counts=[[0] * 5] * 3)
    page = page_of(made("run", events=events))
    rows = page.table("Accuracy per class, in percent")[1:]
    assert [row[:2] for row in rows] == [["class 0", "1"], ["class 2", "2"], ["class 3", "2"], ["class 4", "2"]]


def test_the_most_frequent_mistakes(one):
    events, page = one
    last = confusions(events)[-1]
    worst = max((n, -t, -p) for t, row in enumerate(last) for p, n in enumerate(row) if t != p)
    n, t, p = worst[0], -worst[1], -worst[2]
    rows = page.table("Most frequent mistakes")
    assert rows[1] == [f"class {t}", f"class {p}", str(n), f"{100 * n / sum(last[t]):.1f}"]
    assert [int(row[2]) for row in rows[1:]] == sorted((int(row[2]) for row in rows[1:]), reverse=True)


def test_clients_and_the_partition(one):
    events, page = one
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    *_, end = [event for event in events if isinstance(event, TaskFinished)]
    right = [100 * row[i] / sum(row) for i, row in enumerate(end.confusion)]
    lowest_first = page.table("Accuracy for each client")[1:]
    assert [float(row[3]) for row in lowest_first] == sorted(float(row[3]) for row in lowest_first)
    for client, row in enumerate(page.table("Clients")[1:]):
        counts = events[0].counts[client]
        part = [event for event in rounds if client in event.clients]
        last = part[-1].losses[part[-1].clients.index(client)]
        held = sum(n > 0 for n in counts)
        own = f"{sum(n * r for n, r in zip(counts, right, strict=True)) / sum(counts):.1f}"
        assert row == [str(client), str(sum(counts)), str(held), str(len(part)), f"{last:.3f}", own, "0"]
        assert [str(client), str(sum(counts)), str(held), own] in lowest_first
        assert page.table("Training images per client and task")[client + 1] == [
            *map(str, (client, sum(counts[:2]), sum(counts[2:]), sum(counts)))
        ]


def test_bytes_and_time_per_phase(one):
    events, page = one
    ends = [event for event in events if isinstance(event, TaskFinished)]
    assert page.table("Bytes")[1:] == [[f"task {e.task + 1}", f"{e.bytes_up:,}", f"{e.bytes_down:,}"] for e in ends]
    assert page.table("Seconds") == [
        ["", "clients", "aggregate", "evaluate", "checkpoint", "other", "all"],
        *([f"task {t}", "3.0", "0.5", "0.8", "0.2", "0.5", "5.0"] for t in (1, 2)),
    ]


def test_without_phases_the_time_is_still_told(made):
    _, time = client_charts.costs(group([read_history(made(phases=False))]))
    assert time.numbers.columns == ("", "rounds", "end of task", "all")
    assert time.numbers.rows == (("task 1", "4.0", "1.0", "5.0"), ("task 2", "4.0", "1.0", "5.0"))


def test_the_machine(one):
    assert "fedclass 0.1.0, engine inprocess, python 3.11, torch 2.13.0" in one[1].text


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_one_task_has_no_forgetting(made):
    page = page_of(made(tasks=(4,)))
    assert not any("forgetting" in name for name in page.figures)
    assert "Forgetting" not in page.words


def test_tests_at_the_end_of_tasks_alone_are_named_as_such(made):
    def caption(**about):
        shown = curve_charts.learning(group([read_history(made(str(about), **about))]))
        return next(chart.caption for chart in shown if chart.name == "accuracy-over-rounds")

    assert "evaluation.every=1 tests after every round" in caption(every=0)
    assert "evaluation.every=1" not in caption(every=1)


# What a reader has to know.


def test_nothing_to_warn_of_is_no_warning(one):
    assert "Warnings" not in one[1].regions


@pytest.mark.usefixtures("undrawn")
def test_warnings(made, told):
    start, *rest = told(official=False)
    events = [
        start,
        Warned(message="synnum: the files do not have the published checksums; <these> are not results"),
        TaskReused(task=0, key="0123456789abcdef"),
        UpdateRejected(task=0, round=0, client=2, reason="NaN in head.weight"),
        UpdateRejected(task=1, round=2, client=2, reason="no such client"),
        *rest[:2],
        RunResumed(task=0, round=1, machine={"python": "3.12"}),
        *rest[2:],
    ]
    page = page_of(made(events=events))
    assert page.regions == ["Warnings"]
    assert page.text.count("published checksums") == 1
    assert "<these> are not results" in page.text
    assert "Task 1 was not trained but taken from the cache (0123456789ab)" not in page.text
    assert "Stopped, and resumed before task 1, round 2, on another machine or with other versions" in page.text
    assert "1 update of 1 client left out" in page.text
    assert page.table("Rejected and missing updates")[1:] == [["run", "1", "1", "2", "NaN in head.weight"]]


@pytest.mark.usefixtures("undrawn")
def test_a_reused_task_and_rejections_at_its_end(made, told):
    start, *rest = told()
    end = [UpdateRejected(task=1, round=2, client=c, reason="too large") for c in (0, 1)]
    page = page_of(made(events=[start, TaskReused(task=0, key="0123456789abcdef"), *rest[:-1], *end, rest[-1]]))
    assert "Task 1 was not trained but taken from the cache (0123456789ab)" in page.text
    assert page.text.index("Tasks taken from the cache") < page.text.index("Task 1 was not trained")
    assert "Warnings" in page.regions  # the rejections
    assert reuses(read_history(made("again", events=[start, TaskReused(task=0, key="ab"), *rest])))
    assert not remarks(read_history(made("more", events=[start, TaskReused(task=0, key="ab"), *rest])))
    assert page.table("Rejected and missing updates")[1:] == [["run", "2", "end", c, "too large"] for c in "01"]
    assert "2 times: too large" in page.text
    assert [row[-1] for row in page.table("Clients")[1:]] == ["1", "1", "0"]


def test_data_that_is_not_official_is_said_even_if_the_run_did_not_warn(made):
    (remark,) = remarks(read_history(made(official=False)))
    assert remark == "Unofficial data: the files of synnum do not have the published checksums."


@pytest.mark.parametrize(("kept", "tasks"), [(7, 1), (3, 0), (1, 0)])
def test_an_unfinished_run_says_how_far_it_got(made, told, kept, tasks):
    events = told()[:kept]
    page = page_of(made(events=events))
    rounds = sum(isinstance(event, RoundFinished) for event in events)
    assert f"The run is not finished: {rounds} of 4 rounds, {tasks} of 2 tasks." in page.text
    assert ("accuracy-matrix" in page.figures) == (tasks > 0)
    assert "partition" in page.figures
    assert ("bytes" in page.figures) == (rounds > 0)
    assert len(page.labels) == len(page.figures)


NASTY = ("<script>alert(1)</script>", "$x_1$", "$", "&amp; \"quoted\" 'too'", "nul\x00 \ud800", "类别", "_hidden")


@pytest.mark.slow
def test_names_are_never_markup_nor_formulas(made, told):
    events = told(tasks=(4, 3), names=NASTY, method="my.module:<b>Bold</b>", variant="a&b")
    root = made(events=events, config="seed = 0\n[train]\nrounds = 2  # <b>few</b>\n")
    report = build([read_history(root)], formats=["svg"])
    page = Page(report.page)
    assert not {"script", "b"} & set(page.tags)
    assert "rounds = 2 # <b>few</b>" in page.text
    assert "my.module:<b>Bold</b> (a&b) on synnum" in page.text
    names = [row[0] for row in page.table("Accuracy per class, in percent")[1:]]
    assert names[:4] == list(NASTY[:4])
    assert page.text.count("$x_1$") > 2  # in charts, too
    assert b"<script" not in report.files["classes.svg"]


# Several runs.


@pytest.fixture(scope="module")
def several(told, written, tmp_path_factory):
    runs = {(method, seed): told(method=method, seed=seed) for method in ("fedavg", "fedclass") for seed in (0, 1)}
    folder = tmp_path_factory.mktemp("several")
    for (method, seed), events in runs.items():
        written(folder / f"{method}-s{seed}", events)
    return runs, page_of(folder)


def test_a_table_on_top_with_mean_and_deviation(several):
    runs, page = several
    results = page.table("synnum {2,3}, seeds 0, 1: mean ± deviation")
    assert results[0] == ["method (variant)", "global", "forgetting", "task 1", "task 2"]
    for row, method in zip(results[1:], ("fedavg", "fedclass"), strict=True):
        done = [metrics.summarise(confusions(runs[method, seed]), [2, 3]) for seed in (0, 1)]
        columns = [
            [summary["accuracy_last"] for summary in done],
            [summary["forgetting_fedclass"] for summary in done],
            *([summary["accuracy_matrix"][-1][i] for summary in done] for i in (0, 1)),
        ]
        assert row == [f"{method} (paper)", *(f"{mean(v):.1f} ± {stdev(v):.1f}" for v in columns)]
    assert [row[:4] for row in page.table("All runs")[1:]] == [
        [f"{m}-s{s}", f"{m} (paper)", str(s), "4/4"] for m in ("fedavg", "fedclass") for s in (0, 1)
    ]
    assert "fedavg and fedclass on synnum" in page.text


def test_paired_differences_with_their_intervals_stand_below_that_table(several):
    runs, page = several
    shown = page.table("Differences from fedavg (paper), paired over seeds 0, 1")
    last = {key: metrics.summarise(confusions(events), [2, 3])["accuracy_last"] for key, events in runs.items()}
    gaps = [last["fedclass", seed] - last["fedavg", seed] for seed in (0, 1)]
    reach = 12.706204736 * stdev(gaps) / 2**0.5  # Student's t with one degree of freedom
    interval = f"[{mean(gaps) - reach:+.1f}, {mean(gaps) + reach:+.1f}]"
    assert shown[1][:4] == ["fedclass (paper)", "global", f"{mean(gaps):+.1f}", interval]
    assert [row[1] for row in shown[1:]] == ["global", "forgetting"]


@pytest.mark.usefixtures("undrawn")
def test_differences_are_from_the_row_that_the_folder_was_compared_with(made):
    folder = made("all/fedavg-s0", method="fedavg", seed=0).parent
    made("all/fedwa-s0", method="fedwa", seed=0)
    Order(("fedwa-s0", "fedavg-s0"), "fedwa").write(folder)
    page = page_of(folder)
    assert [row[0] for row in page.table("synnum {2,3}, seed 0")[1:]] == ["fedwa (paper)", "fedavg (paper)"]
    assert page.table("Differences from fedwa (paper), paired over seed 0")[1][0] == "fedavg (paper)"
    Order(("fedwa-s0", "fedavg-s0"), "joint").write(folder)  # not finished yet
    assert page_of(folder).table("Differences from fedwa (paper), paired over seed 0")


@pytest.mark.usefixtures("undrawn")
def test_data_by_the_name_that_its_user_gave_it(made):
    recipe = 'seed = 0\n[data]\ntitle = "Chest X-rays"\n[method]\nname = "{}"\n'
    made("all/a", method="fedavg", config=recipe.format("fedavg"))
    page = page_of(made("all/b", config=recipe.format("fedclass")).parent)
    assert "fedavg and fedclass on Chest X-rays" in page.text
    assert len(page.table("Chest X-rays {2,3}, seed 0")) == 3


def test_curves_are_means_over_seeds_beside_each_other(several):
    runs, page = several
    over_rounds, over_tasks = page.tables["accuracy (%)"]
    assert over_tasks[0] == ["task", "fedavg (paper)", "fedclass (paper)"]
    for task in (0, 1):
        means = [
            mean(metrics.accuracy_micro(confusions(runs[method, seed])[task]) for seed in (0, 1))
            for method in ("fedavg", "fedclass")
        ]
        assert over_tasks[task + 1] == [str(task + 1), *percent(means)]
    assert [row[0] for row in over_rounds[1:]] == ["1", "2", "3", "4"]
    assert "accuracy-matrix-fedavg-paper" in page.figures
    assert "confusion-fedclass-paper" in page.figures
    assert len(set(page.figures)) == len(page.figures) == len(page.labels)


def test_a_method_has_its_colour_in_every_report(made, several):
    assert several[1].looks == {"fedavg (paper)": "0", "fedclass (paper)": "1"}
    others = group([read_history(made(name, method=name)) for name in ("mine:M", "fedwa", "fedclass", "yours:Y")])
    colours = {g.method: style.PALETTE.index(g.style.colour) for g in others}
    assert (colours["fedwa"], colours["fedclass"]) == (4, 1)
    assert len(set(colours.values())) == 4


def test_the_usual_variant_and_a_finished_run_come_first_for_the_methods_colour(made, told):
    made("all/a", variant="released")
    made("all/b", events=told(seed=1)[:7])
    others = group([read_history(path) for path in find_all([made("all/c").parent])])
    assert {g.label: g.style.slot for g in others} == {
        "fedclass (released)": 6,
        "fedclass (paper), unfinished": 5,
        "fedclass (paper)": 1,
    }


@pytest.mark.usefixtures("undrawn")
def test_seeds_that_differ_between_methods_are_named(made, several):
    made("all/a", method="fedavg", seed=0)
    made("all/b", method="fedavg", seed=1)
    folder = made("all/c", seed=1).parent
    assert "Seeds differ: fedclass (paper) lacks 0." in page_of(folder).text
    assert "Seeds differ" not in several[1].text


@pytest.mark.usefixtures("undrawn")
def test_runs_of_one_method_with_other_settings_are_told_apart(made):
    recipe = 'seed = {}\n[method]\nname = "fedclass"\nbeta = {}\n'
    for beta in (1.0, 5.0):
        for seed in (0, 1):
            made(f"sweep/{beta}-{seed}", seed=seed, tasks=(3,), config=recipe.format(seed, beta))
    page = page_of(made("sweep/last", seed=2, tasks=(3,), config=recipe.format(2, 5.0)).parent)
    results = page.table("synnum {3}, seeds 0, 1, 2: mean ± deviation")
    assert [row[0] for row in results[1:]] == ["fedclass (paper) beta=1, seeds 0, 1", "fedclass (paper) beta=5"]
    assert page.table("Settings that differ") == [
        ["key", "fedclass (paper) beta=1", "fedclass (paper) beta=5"],
        ["method.beta", "1.0", "5.0"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_an_unfinished_run_among_others_is_no_part_of_their_means(made, told):
    made("all/a", seed=0)
    made("all/b", events=told(seed=1)[:7])
    page = page_of(made("all/c", seed=2).parent)
    results = page.table("synnum {2,3}, seeds 0, 2: mean ± deviation")
    assert [row[0] for row in results[1:]] == ["fedclass (paper)"]
    assert "b: The run is not finished: 3 of 4 rounds" in page.text
    assert "fedclass (paper), unfinished" in page.text


def test_none_of_several_need_be_finished(made, told):
    made("all/a", events=told(method="fedavg")[:4])
    page = page_of(made("all/b", events=told()[:1]).parent)
    assert "Results" not in page.words
    assert "a: The run is not finished: 2 of 4 rounds" in page.text


@pytest.mark.usefixtures("undrawn")
def test_a_remark_on_all_runs_is_made_once(made, told):
    made("all/a", events=told(official=False, seed=0)[:1])
    page = page_of(made("all/b", events=told(official=False, seed=1)[:1]).parent)
    assert page.text.count("All runs: Unofficial data") == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"dataset": "cifar10"},
            r"b: learned cifar10 in tasks of \[2, 3\], but .*a learned synnum .*report them separately",
        ),
        ({"tasks": (3, 2)}, r"tasks of \[3, 2\], but .*report them separately"),
        ({"sha256": "cd" * 32}, r"b: learned other images of synnum \(sha256 cdcdcdcdcdcd\)"),
        ({}, r"b: is the same experiment as .*a \(seed 0, same settings\).*name only one of them"),
    ],
)
def test_runs_that_cannot_be_compared_are_one_clear_error(made, other, message):
    made("all/a")
    made("all/b", **other)
    with pytest.raises(RunError, match=message):
        group([read_history(path) for path in find_all([made("all/c", seed=5).parent])])


def test_parts_of_a_data_set_may_be_compared_but_not_with_other_images(made):
    """`sweep --set data.fraction=0.5,1` makes such runs; each part has its own hash."""
    half = 'seed = 0\n[data]\nfraction = 0.5\n[method]\nname = "fedclass"\n'
    made("all/a")
    parts = made("all/b", sha256="cd" * 32, config=half).parent
    assert len(group([read_history(path) for path in find_all([parts])])) == 2
    made("all/c", sha256="ef" * 32, config=half.replace("seed = 0", "seed = 1"), seed=1)
    with pytest.raises(RunError, match=r"c: learned other images of synnum \(sha256 efefefefefef\) than .*b"):
        group([read_history(path) for path in find_all([parts])])


def test_runs_whose_images_are_at_sites_are_not_compared_by_images(made):
    made("all/a", sha256="")
    found = group([read_history(path) for path in find_all([made("all/b", seed=5).parent])])
    assert sum(len(each.runs) for each in found) == 2


# Files.


def test_every_colour_of_a_chart_has_one_on_light_and_one_on_dark_paper(one):
    for number, colour in enumerate(style.PALETTE):
        assert f"--c{number}: {colour};" in one[1].source
        assert len(re.findall(rf"--c{number}: #", one[1].source)) == 2


def test_the_page_asks_nothing_of_a_network(several):
    text = several[1].source
    outside = [a for a in re.findall(r'(?:src|href)\s*=\s*"([^"]+)"', text) if not a.startswith(("#", "data:"))]
    assert outside == []
    assert "@import" not in text
    assert "url(http" not in text


@pytest.mark.slow
def test_a_large_run_stays_small(made):
    """200 clients, 100 classes in ten tasks: below two megabytes, with no table of 20,000 cells."""
    history = read_history(made(tasks=(10,) * 10, clients=200, rounds=5))
    report = build([history])
    assert len(report.page.encode()) < 2_000_000
    assert Page(report.page).tags.count("td") < 6000


def test_a_place_that_cannot_be_written_is_one_clear_error(made, told, tmp_path):
    history = read_history(made(events=told()[:1]))
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written \(.*\); choose another place"):
        write_report([history], tmp_path / "file" / "report.html", tmp_path / "file" / "figures")
    with pytest.raises(RunError, match=r"cannot be written \(Is a directory\)"):
        write_report([history], tmp_path, tmp_path / "figures")


# The command.


def command(*words, cwd):
    return called("report", *map(str, words), cwd=cwd)


def command_without_torch(*words, cwd):
    """In a process of its own."""
    code = (
        "import sys\nfrom fedclass.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "report", *map(str, words)], cwd=cwd, capture_output=True, text=True
    )


@pytest.mark.slow
def test_one_run_is_reported_in_its_directory_without_torch_and_again_with_the_same_bytes(made, tmp_path):
    done = command_without_torch(made("run"), "--picture", "both.svg", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "report.html").exists()
    written = sorted(path.name for path in (tmp_path / "run" / "figures").iterdir())
    assert written == sorted(f"{name}.{kind}" for name in ALL for kind in ("pdf", "png", "svg"))
    assert "run/report.html (1 run)" in done.stdout

    again = build([read_history(tmp_path / "run")], formats=FORMATS)
    assert again.page.encode() == (tmp_path / "run" / "report.html").read_bytes()
    for name, content in again.files.items():
        assert content == (tmp_path / "run" / "figures" / name).read_bytes(), name

    picture = ElementTree.fromstring((tmp_path / "both.svg").read_bytes())
    charts = [part for part in picture if part.tag.endswith("svg")]
    assert [float(chart.attrib["x"]) for chart in charts] == [0.0, 72 * style.WIDTH], "two charts, side by side"
    assert [float(chart.attrib["width"]) for chart in charts] == pytest.approx([72 * style.WIDTH] * 2)
    assert float(picture.attrib["width"].removesuffix("pt")) == pytest.approx(2 * 72 * style.WIDTH)
    assert "Forgetting over rounds" in picture.attrib["aria-label"]
    refused = command(tmp_path / "run", "--picture", "both.png", cwd=tmp_path)
    assert (refused.returncode, "the name must end in .svg" in refused.stderr) == (2, True)


def test_several_runs_are_reported_in_the_working_folder_or_where_told(made, told, tmp_path):
    runs = [made("a", events=told(method="fedavg")[:1]), made("b", events=told()[:1])]
    done = command(*runs, cwd=tmp_path)
    assert "report.html (2 runs)" in done.stdout, done.stderr
    early = command(*runs, "--picture", "both.svg", cwd=tmp_path)
    assert (early.returncode, "the model has not been tested yet" in early.stderr) == (4, True)
    assert (tmp_path / "report-figures" / "partition.png").exists()
    (tmp_path / "paper").mkdir()
    assert command(runs[0], "--out", "paper/first.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "paper" / "first.html").exists()
    assert (tmp_path / "paper" / "first-figures" / "partition.svg").exists()
    assert not (runs[0] / "report.html").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "no such folder"),
        ("empty", "is not a run directory"),
        ("cut", "line 3: not an event of fedclass"),
        ("mixed", "report them separately"),
    ],
)
def test_a_mistake_ends_in_one_line_and_nothing_is_written(made, tmp_path, place, message):
    (tmp_path / "empty").mkdir()
    made("mixed/a")
    made("mixed/b", dataset="cifar10")
    events = made("cut") / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([*lines[:2], lines[2][:50] + "\n", *lines[3:]]))
    done = command(place, cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*tmp_path.rglob("report.html"), *tmp_path.rglob("*figures*")]


def test_a_real_run_agrees_with_its_summary(tiny, tmp_path):
    from fedclass.experiment.launch import run_one

    summary = run_one(tiny(method="fedwa"), tmp_path / "real")
    page = page_of(tmp_path / "real")
    assert f"Global accuracy {summary['accuracy_last']:.1f} %" in page.text
    assert page.tables["Accuracy in percent"][0][-1][1:] == percent(summary["accuracy_matrix"][-1])
    up, down = (sum(int(row[i].replace(",", "")) for row in page.table("Bytes")[1:]) for i in (1, 2))
    assert (up, down) == (summary["bytes_up"], summary["bytes_down"])
    assert "fedwa (wa) on npz" in page.text
    assert len(page.figures) == len(ALL)
