"""The mode: one value, one spelling, and errors that say what would do."""

import json
import pickle
import re
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paumer.mode import (
    CRITERIA,
    FULL_SIZE,
    LARGEST_SIDE,
    REMOVED_CRITERIA,
    STUDY_CRITERIA,
    UNPAUSED,
    Mode,
    by_size,
    check_runnable,
    parse_modes,
    read_mode,
)
from paumer.pause_config import NO_PAUSE, PAPER_CONFIGS, MergeConfig, PauseConfig, Threshold

few = st.sampled_from((0.1, 0.25))
ratios = st.floats(0, 1, exclude_max=True)
thresholds = st.floats(allow_nan=False, allow_infinity=False).map(Threshold)
reserved = st.text(" +=%:,<_-./\\\"'~\n\u00e4\u8def2B", min_size=1, max_size=6)
names = (
    st.sampled_from(("car", "traffic light", "pole", "a+b", "a_size-5"))
    | reserved
    | st.text(min_size=1, max_size=4)
)


@st.composite
def modes(draw):
    blocks = draw(st.sets(st.integers(1, 40), max_size=4).map(sorted))
    merged = draw(st.sets(st.integers(1, 12), max_size=6).map(sorted))
    return Mode(
        merge=MergeConfig(tuple((block, draw(few | st.floats(0, 0.5))) for block in merged)),
        pause=PauseConfig(tuple((block, draw(ratios | thresholds)) for block in blocks)),
        criterion=draw(st.sampled_from((*CRITERIA, *STUDY_CRITERIA))),
        early_exit=draw(st.booleans()),
        protect=tuple(draw(st.lists(names, max_size=3))),
        size=draw(st.none() | st.integers(1, LARGEST_SIDE)),
    )


class TestSpelling:
    @given(modes())
    def test_reading_what_was_printed_gives_the_same_mode(self, mode):
        again = Mode.parse(str(mode))
        assert again == mode
        assert hash(again) == hash(mode)
        assert str(again) == str(mode)
        assert eval(repr(mode), {"Mode": Mode}) == mode

    @given(modes())
    def test_the_text_is_also_the_json_form(self, mode):
        assert Mode.parse(json.loads(json.dumps({"mode": str(mode)}))["mode"]) == mode

    @given(modes(), modes())
    def test_modes_are_equal_exactly_when_their_texts_are(self, one, other):
        assert (one == other) == (str(one) == str(other))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("none", UNPAUSED),
            ("", UNPAUSED),
            ("3:0.4", Mode(pause=PauseConfig(((3, 0.4),)))),
            (
                "3:0.4,9:0.9 exit by=neighbours",
                Mode(
                    pause=PauseConfig(((3, 0.4), (9, 0.9))), early_exit=True, criterion="neighbours"
                ),
            ),
            ("none size=288", Mode(size=288)),
            ("none size=full", Mode(size=FULL_SIZE)),
            (
                "3:<0.5 protect=car+traffic%20light size=288",
                Mode(
                    pause=PauseConfig(((3, Threshold(0.5)),)),
                    protect=("car", "traffic light"),
                    size=288,
                ),
            ),
        ],
    )
    def test_texts_are_read(self, text, expected):
        assert Mode.parse(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "3:0.2,5:<0.4 exit by=neighbours protect=car size=288",
            "3:0.2,5:<0.4 size=288 protect=car by=neighbours exit",
            "  3 : 0.2 , 5:< 0.4\texit  by=neighbours\nprotect=car size=0288 ",
        ],
    )
    def test_the_order_of_words_and_blanks_do_not_matter(self, text):
        mode = Mode.parse(text)
        assert str(mode) == "3:0.2,5:<0.4 exit by=neighbours protect=car size=288"

    def test_what_is_usual_is_left_out(self):
        assert str(UNPAUSED) == "none"
        assert str(Mode.parse("3:0.4 by=entropy")) == "3:0.4"

    @given(st.lists(names, min_size=1, max_size=3))
    def test_reserved_characters_of_class_names_are_percent_encoded(self, protect):
        mode = Mode(pause=PAPER_CONFIGS[0], protect=tuple(protect))
        stages, word = str(mode).split(" ")
        assert stages == "3:0.2"
        assert re.fullmatch(r"protect=[\w.~%-]+(\+[\w.~%-]+)*", word, re.ASCII)
        assert Mode.parse(str(mode)).protect == tuple(sorted(set(protect)))

    def test_a_class_name_with_a_blank_and_a_plus(self):
        mode = Mode(pause=PAPER_CONFIGS[0], protect=("traffic light", "a+b"))
        assert str(mode) == "3:0.2 protect=a%2Bb+traffic%20light"


class TestValue:
    @given(modes())
    def test_where_nothing_pauses_only_the_size_is_left(self, mode):
        merging = replace(mode, pause=NO_PAUSE)
        assert merging == Mode(merge=mode.merge, size=mode.size)
        bare = replace(merging, merge=MergeConfig())
        assert (bare.criterion, bare.early_exit, bare.protect) == ("entropy", False, ())
        assert str(bare) == ("none" if mode.size is None else f"none size={mode.size}")

    @given(modes(), st.randoms())
    def test_the_order_of_protected_classes_does_not_matter(self, mode, rng):
        shuffled = [*mode.protect, *mode.protect]
        rng.shuffle(shuffled)
        assert replace(mode, protect=tuple(shuffled)) == mode

    def test_normalised_modes_are_equal_values(self):
        assert Mode.parse("none exit by=neighbours protect=car") == UNPAUSED
        assert Mode.parse("3:0.4 protect=b+a+b") == Mode.parse("3:0.4 protect=a+b")
        assert {Mode.parse("3:0.4 exit"): 1}[Mode.parse("3:.4 exit by=entropy")] == 1

    def test_it_cannot_be_changed_and_can_be_sent_to_another_process(self):
        mode = Mode.parse("3:0.2,5:<0.4 exit protect=traffic%20light size=288")
        assert pickle.loads(pickle.dumps(mode)) == mode
        with pytest.raises(FrozenInstanceError):
            mode.size = 3

    @given(modes())
    def test_the_slug_is_a_safe_file_name(self, mode):
        assert re.fullmatch(r"[\w.,~%+-]+", mode.slug, re.ASCII)
        assert mode.slug[0] not in ".-"
        assert len(mode.slug) <= 120

    @given(modes(), modes())
    @example(
        Mode(pause=PAPER_CONFIGS[0], protect=("a_size-5",)),
        Mode(pause=PAPER_CONFIGS[0], protect=("a",), size=5),
    )
    def test_modes_have_the_same_slug_only_if_they_are_equal(self, one, other):
        assert (one.slug == other.slug) == (one == other)

    def test_the_slug_reads_like_the_mode(self, tmp_path):
        mode = Mode.parse("3:0.4,9:<0.9 exit by=neighbours protect=car size=288")
        assert mode.slug == "3-0.4,9-lt0.9_exit_by-neighbours_protect-car_size-288"
        many = [Mode.parse(f"3:0.4 protect=x+{'y' * 300} size={side}") for side in (4, 5)]
        for each in (mode, *many):
            (tmp_path / each.slug).touch()
        assert len(list(tmp_path.iterdir())) == 3


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("3:0.4 fast", 'cannot read "fast" in mode "3:0.4 fast": write STAGES [exit]'),
            ("3:0.4 exit=1", 'cannot read "exit=1"'),
            ("3:0.4 by", 'cannot read "by"'),
            ("3:0.4 size", 'cannot read "size"'),
            ("3:0.4 size=large", 'cannot read "size=large"'),
            ("3:0.4 size=-1", 'cannot read "size=-1"'),
            ("3:0.4 size=" + "9" * 5000, 'cannot read "size=999'),
            ("3:0.4 exit exit", 'cannot read "exit" in mode "3:0.4 exit exit": it is given twice'),
            ("3:0.4 size=1 size=2", 'cannot read "size=2"'),
            ("3:0.4 colour=red", 'cannot read "colour=red"'),
            ("3:0.4 protect=traffic light", 'cannot read "light"'),
            ("3:0.4 size=0", "size is 0: give a side from 1 to 65536"),
            ("3:0.4 size=65537", "size is 65537: give a side from 1 to 65536"),
            ("3:0.4 protect=", "protect is ('',): give a list of class names"),
            ("3:0.4 protect=a++b", "protect is ('a', '', 'b'): give a list of class names"),
            ("3:0.4 by=luck", 'no criterion "luck": choose one of entropy, neighbours, random'),
            ("3:1.4", '"3:1.4" is out of range'),
            ("exit", 'cannot read "exit" in pause configuration "exit"'),
        ],
    )
    def test_bad_text_is_refused_naming_the_part(self, text, message):
        with pytest.raises(ValueError) as raised:
            Mode.parse(text)
        assert message in str(raised.value)
        assert type(raised.value) is ValueError

    @given(st.text("01359:,.<e ", max_size=6), st.text("exitbysze=+%0 ", max_size=16))
    def test_any_text_is_read_or_refused_in_words(self, stages, words):
        try:
            mode = Mode.parse(f"{stages} {words}")
        except ValueError as error:
            said = str(error)
        else:
            said = f'"{Mode.parse(str(mode))}"'
        assert re.search('"|give a', said)

    @pytest.mark.parametrize("name", REMOVED_CRITERIA)
    def test_a_removed_criterion_is_refused_by_its_name(self, name):
        with pytest.raises(ValueError, match=f'the criterion "{name}" was removed in 0.2'):
            Mode(criterion=name)
        with pytest.raises(ValueError, match=f'the criterion "{name}" was removed in 0.2'):
            Mode.parse(f"3:0.4 by={name}")

    def test_what_is_not_a_mode_is_a_type_error(self):
        for wrong in (3, None, 0.4, ("3:0.4",), b"3:0.4"):
            with pytest.raises(TypeError, match=r"is not a mode: give a Mode or its text, such as"):
                read_mode(wrong)
            with pytest.raises(TypeError, match="is not a mode"):
                read_mode(wrong, {})
        with pytest.raises(TypeError, match=r"'3:0\.4' is not a PauseConfig: Mode\.parse"):
            Mode(pause="3:0.4")
        with pytest.raises(ValueError, match="protect is 'car': give a list of class names"):
            Mode(protect="car")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("size", 288.0),
            ("size", True),
            ("size", "288"),
            ("protect", None),
            ("protect", ("car", 3)),
            ("protect", 3),
            ("early_exit", "no"),
            ("early_exit", None),
        ],
    )
    def test_a_value_of_another_type_is_refused_naming_the_field(self, field, value):
        message = f"^{field} is {re.escape(repr(value))}: give "
        with pytest.raises((TypeError, ValueError), match=message):
            Mode(pause=PAPER_CONFIGS[0], **{field: value})

    def test_numbers_and_truth_values_of_numpy_become_plain_ones(self):
        given = {"size": np.int64(288), "early_exit": np.bool_(True), "protect": ["b", "a"]}
        mode = Mode(pause=PAPER_CONFIGS[0], **given)
        assert mode == Mode.parse("3:0.2 exit protect=a+b size=288")
        assert (type(mode.size), type(mode.early_exit)) == (int, bool)

    @pytest.mark.parametrize("name", STUDY_CRITERIA)
    def test_what_only_a_study_knows_is_for_studies_alone(self, name):
        with pytest.raises(ValueError) as raised:
            check_runnable(Mode.parse(f"3:0.4 exit by={name}"))
        assert str(raised.value) == (
            f'by={name} is for evaluate and sweep alone ("3:0.4 exit by={name}"): '
            f"choose one of entropy, neighbours"
        )
        check_runnable(Mode.parse(f"none by={name}"))

    @pytest.mark.parametrize("name", CRITERIA)
    def test_the_others_run_everywhere(self, name):
        check_runnable(Mode.parse(f"3:0.4 by={name}"))


POINTS = {"fast": Mode.parse("3:0.4 exit"), "small": Mode.parse("none size=144")}


class TestReading:
    @given(modes())
    def test_whatever_stands_for_a_mode_gives_it(self, mode):
        assert read_mode(mode) is mode
        assert read_mode(str(mode)) == mode
        assert read_mode(mode.pause) == Mode(pause=mode.pause)

    def test_operating_points_are_named(self):
        assert read_mode("fast", POINTS) == POINTS["fast"]
        assert read_mode("3:0.4 exit", POINTS) == POINTS["fast"]
        assert read_mode(PauseConfig(((3, 0.4),)), POINTS) == Mode.parse("3:0.4")
        with pytest.raises(ValueError, match=r"operating points of this model: fast, small$"):
            read_mode("slow", POINTS)
        with pytest.raises(ValueError, match=r'small \(did you mean "small"\?\)$'):
            read_mode("smal", POINTS)
        with pytest.raises(ValueError, match=r"operating points of this model: none$"):
            read_mode("slow", {})
        with pytest.raises(ValueError, match=r'cannot read "slow" .* or "none"$'):
            read_mode("slow")

    @pytest.mark.parametrize("text", ["3:1.4", "none size=70000", "none fast", " none exit=1"])
    def test_a_mode_with_an_error_is_not_taken_for_a_name(self, text):
        with pytest.raises(ValueError) as raised:
            read_mode(text, POINTS)
        assert "operating points" not in str(raised.value)

    def test_paper_stands_for_the_thirteen_and_repeats_are_dropped(self):
        assert parse_modes(["paper"]) == tuple(Mode(pause=pause) for pause in PAPER_CONFIGS)
        both = parse_modes(["none", "paper", "3:0.4", "9:0.1"])
        assert [str(mode) for mode in both] == ["none", *map(str, PAPER_CONFIGS), "9:0.1"]
        assert parse_modes([]) == ()

    def test_words_after_a_grid_hold_for_all_of_it(self):
        found = parse_modes(["paper exit by=neighbours size=288"])
        assert len(found) == 13
        assert [mode.pause for mode in found] == list(PAPER_CONFIGS)
        assert {(m.early_exit, m.criterion, m.size) for m in found} == {(True, "neighbours", 288)}

    def test_grids_of_other_names(self):
        grids = {"mine": (NO_PAUSE, PauseConfig(((2, 0.5),)))}
        found = parse_modes(["mine exit", "none"], grids=grids)
        assert [str(mode) for mode in found] == ["none", "2:0.5 exit"]
        with pytest.raises(ValueError, match='cannot read "paper"'):
            parse_modes(["paper"], grids=grids)

    def test_operating_points_stand_among_modes(self):
        found = parse_modes(["fast", "3:0.4", "3:0.4 exit", "small"], POINTS)
        assert found == (POINTS["fast"], Mode.parse("3:0.4"), POINTS["small"])
        with pytest.raises(ValueError, match="operating points of this model: fast, small"):
            parse_modes(["slow"], POINTS)

    @given(st.lists(modes(), max_size=8))
    def test_modes_are_grouped_by_size(self, many):
        groups = by_size(many)
        assert sorted(number for group in groups.values() for number in group) == list(
            range(len(many))
        )
        for size, group in groups.items():
            assert group == sorted(group)
            assert {many[number].size for number in group} == {size}


class TestMerging:
    @pytest.mark.parametrize(
        ("text", "spelled"),
        [
            ("1:~0.1,2:~0.1", "1-2:~0.1"),
            ("3:0.2, 1-3 : ~ 0.1", "1-3:~0.1,3:0.2"),
            ("4:~0.2,1-2:~0.1", "1-2:~0.1,4:~0.2"),
            ("1-6:~.1,9:1 exit", "1-6:~0.1,9:1 exit"),
            ("2:~0.1 exit by=neighbours protect=a", "2:~0.1"),
        ],
    )
    def test_stages_that_merge_have_one_spelling(self, text, spelled):
        assert str(Mode.parse(text)) == spelled

    def test_a_block_merges_before_it_pauses(self):
        stages = Mode.parse("2:0.4,1-2:~0.1").stages
        assert stages == ((1, True, 0.1), (2, True, 0.1), (2, False, 0.4))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1:~0.6", "at most half of the patches"),
            ("1:~nan", 'cannot read "1:~nan"'),
            ("0:~0.1", "they count from 1"),
            ("1:~0.1,1:~0.2", "give each once"),
            ("6-1:~0.1", "write the lower one first"),
            ("1-9999999:~0.1", 'cannot read "1-9999999:~0.1"'),
            ("9:1", "nothing is left to decode: add exit"),
            ("9:1,10:0.2 exit", "or 1 at the end"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, text, message):
        with pytest.raises(ValueError, match=message):
            Mode.parse(text)
