"""What makes a row, what it is called, and how it is found."""

from dataclasses import fields

import pytest

from fedclass.errors import ConfigError, RunError
from fedclass.methods.bounds import FineTune, Joint
from fedclass.methods.fedclass import Form
from fedclass.report.known_methods import about_method
from fedclass.report.rows import Label, find, rows, text
from fedclass.runs.config_file import flat, read_config


def names(results):
    return [str(row.label) for row in rows(results)]


def test_a_row_is_all_seeds_of_a_setting_in_their_order(result):
    found = rows([result(seed=2), result("fedavg"), result(seed=0), result(seed=1)])
    assert [(str(row.label), row.seeds) for row in found] == [("fedclass (paper)", (0, 1, 2)), ("fedavg (paper)", (0,))]


def test_parameters_are_shown_where_settings_of_the_method_differ(result):
    runs = [
        result("fedavg"),
        result(config={"method": {"beta": 3.0, "same": 1}}),
        result(config={"method": {"beta": 0.5, "same": 1}}),
        result(variant="released", config={"method": {"beta": 3.0, "same": 1}}),
    ]
    assert names(runs) == [
        "fedavg (paper)",
        "fedclass (paper) beta=3",
        "fedclass (paper) beta=0.5",
        "fedclass (released) beta=3",
    ]


def test_what_the_variant_says_is_not_said_twice(result):
    runs = [
        result(config={"method": {"variant": "paper", "temperature": 3.0, "stop_gradient": True}}),
        result(
            variant="released", config={"method": {"variant": "released", "temperature": 5.0, "stop_gradient": False}}
        ),
        result("fedwa", config={"method": {"temperature": 2.0}}),
        result("fedwa", config={"method": {"temperature": 4.0}}),
    ]
    assert names(runs) == [
        "fedclass (paper)",
        "fedclass (released)",
        "fedwa (paper) temperature=2",
        "fedwa (paper) temperature=4",
    ]
    assert about_method("fedclass").told == {f"method.{field.name}" for field in fields(Form)}


def test_other_keys_are_shown_where_any_rows_differ(result):
    runs = [
        result("fedavg", config={"partition": {"alpha": 0.1}}),
        result("fedwa", config={"partition": {"alpha": 0.1}, "memory": {"per_class": 2}}),
    ]
    assert names(runs) == ["fedavg (paper)", "fedwa (paper) memory.per_class=2"]
    runs.append(result("fedwa", config={"partition": {"alpha": 1.0}}))
    assert names(runs)[0] == "fedavg (paper) partition.alpha=0.1"


def test_a_bound_is_named_by_what_it_trains_on_and_makes_no_difference_of_others_memory(result):
    runs = [
        result("fedavg", variant="standard", config={"memory": {"per_client": 6}}),
        result("joint", variant=Joint().variant_name, config={"memory": {"per_client": 0}}),
        result("finetune", variant=FineTune().variant_name, config={"memory": {"per_client": 0}}),
    ]
    assert names(runs) == ["fedavg (standard)", "joint (bound, all images)", "finetune (no exemplars)"]
    runs.append(result("fedavg", variant="standard", config={"memory": {"per_client": 0}}))
    assert names(runs)[0] == "fedavg (standard) memory.per_client=6"


def test_how_often_a_run_was_tested_and_how_tasks_were_written_make_no_row(result):
    first = result(config={"evaluation": {"every": 1}, "stream": {"tasks": [5, 5]}})
    second = result(seed=1, config={"evaluation": {"every": 4}, "stream": {"tasks": "5,5"}})
    assert names([first, second]) == ["fedclass (paper)"]


def test_the_same_setting_and_seed_twice_is_refused(result):
    first, second = result(), result()
    with pytest.raises(RunError, match="the same setting and seed; name one of the two") as error:
        rows([first, second])
    assert str(first.path) in str(error.value)
    assert str(second.path) in str(error.value)


KNOWN = [
    Label("fedavg", "standard", ()),
    Label("fedclass", "paper", ()),
    Label("fedclass", "paper, temperature=2.5", ()),
    Label("fedclass", "released", ("beta=8", "train.rounds=2")),
    Label("mine:Twice", "standard", ()),
]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("fedavg", 0),
        ("fedclass:paper", 1),
        ("fedclass:paper:temperature=2.5", 2),
        ("fedclass (paper, temperature=2.5)", 2),
        ("fedclass:beta=8", 3),
        ("train.rounds=2", 3),
        ("mine:Twice", 4),
    ],
)
def test_a_row_is_found_by_enough_of_its_words(name, index):
    assert find(KNOWN, name) is KNOWN[index]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "fedclass",
            "names several rows; name one of: fedclass \\(paper\\); fedclass \\(paper, temperature=2.5\\); fedcl",
        ),
        ("standard", "names several rows; name one of: fedavg \\(standard\\); mine:Twice \\(standard\\)$"),
        ("fedwa", "against fedwa: there is no such row; name one of: fedavg \\(standard\\); "),
        ("fedclass:beta=80", "no such row"),
    ],
)
def test_a_name_of_none_or_several_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        find(KNOWN, name)


def test_values_look_as_they_are_typed():
    values = (5.0, 0.5, 1e-5, 3, True, "dirichlet", [5, 5], [0.5, 1.0])
    assert list(map(text, values)) == ["5", "0.5", "1e-05", "3", "true", "dirichlet", "[5,5]", "[0.5,1]"]
    assert flat({"seed": 1, "train": {"rounds": 2, "device": "cpu"}}) == {
        "seed": 1,
        "train.rounds": 2,
        "train.device": "cpu",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.toml: cannot be read"),
        ("method = [", "is damaged"),
    ],
)
def test_a_run_without_a_readable_recipe_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.toml").write_text(content)
    with pytest.raises(RunError, match=message):
        read_config(tmp_path)


def test_images_of_the_same_name_are_compared_only_if_they_are_the_same(result):
    """Two folders of a user's own are both called "folder"; seeds of both would have made one row."""
    own = {"dataset": "folder", "official_data": None}
    runs = [result(dataset_sha256="a" * 64, **own), result(seed=1, dataset_sha256="b" * 64, **own)]
    with pytest.raises(RunError, match=r"fedclass-2: learned other images of folder \(sha256 bbbbbbbbbbbb\) than .*-1"):
        rows(runs)
    part = {"data": {"name": "folder", "fraction": 0.5}}
    assert len(rows([runs[0], result(dataset_sha256="c" * 64, config=part, **own)])) == 2, "a part has another hash"
    assert rows([runs[0], result(seed=1, **own)])[0].seeds == (0, 1), "older summaries have no hash"
