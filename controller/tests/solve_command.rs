//! `bftrainer solve` as a user meets it: vectors, classes and caps, and whatever else a file may
//! hold.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const VECTORS: &str = "core/tests/instances.jsonl";

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bftrainer"));
    command
        .arg("solve")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// What it answers to `input` on its standard input.
fn answer(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(&[arguments, &["-"]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // It may have stopped reading.
    let _ = writer.join().unwrap();
    output
}

fn answers(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn complaints(output: &Output) -> Vec<String> {
    let text = std::str::from_utf8(&output.stderr).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn trainer(fields: &Value) -> Value {
    let mut trainer = json!({
        "current": 0, "min": 1, "max": 8, "scale_up_cost_s": 18, "scale_down_cost_s": 12,
        "curve": [[0, 0], [1, 10], [8, 66]],
    });
    for (key, value) in fields.as_object().unwrap() {
        trainer[key] = value.clone();
    }
    trainer
}

fn simple(id: u32) -> String {
    json!({"id": id, "pool": 3, "tfwd": 60, "trainers": [trainer(&json!({}))]}).to_string()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[test]
fn all_vectors_are_answered_by_both_solvers_with_and_without_the_half_pool_bound() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(VECTORS);
    let text = std::fs::read_to_string(file).unwrap();
    let vectors: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for solver in ["auto", "dp", "milp"] {
        for half in [false, true] {
            let mut arguments = vec!["--solver", solver, VECTORS];
            let mut expected = "objective";
            if half {
                arguments.push("--half-pool-bound");
                expected = "objective_half_pool_bound";
            }
            let output = command(&arguments).output().unwrap();
            let answers = answers(&output);
            assert_eq!(answers.len(), 302);
            for (answer, vector) in answers.iter().zip(&vectors) {
                assert_eq!(answer["id"], vector["id"]);
                match vector[expected].as_f64() {
                    Some(objective) => {
                        assert!(near(answer["objective"].as_f64().unwrap(), objective));
                        assert_eq!(answer["optimal"], json!(true));
                        let used = if solver == "milp" { "milp" } else { "dp" };
                        assert_eq!(answer["solver"], json!(used));
                        let given = answer["allocation"].as_array().unwrap().iter();
                        let given: u64 = given.map(|nodes| nodes.as_u64().unwrap()).sum();
                        assert!(given <= vector["pool"].as_u64().unwrap());
                    }
                    None => {
                        assert_eq!(answer["objective"], Value::Null);
                        assert!(answer["error"].as_str().unwrap().contains("infeasible"));
                    }
                }
            }
            // 14 vectors are infeasible under the bound, which is a failure to be told.
            assert_eq!(output.status.code(), Some(i32::from(half)));
        }
    }
}

#[test]
fn classes_and_caps_are_named_in_the_answer() {
    let instance = json!({
        "id": "a", "tfwd": 60,
        "classes": [{"name": "a100", "nodes": 4}, {"name": "h100", "nodes": 2}],
        "trainers": [
            trainer(&json!({"class": "a100", "current": 3, "speed": {"a100": 1.0}})),
            trainer(&json!({"class": null, "speed": {"a100": 1.0, "h100": 1.8}, "weight": 2.0})),
            trainer(&json!({"speed": {"h100": null, "a100": 0}})),
        ],
        "caps": [{"trainers": [0, 1], "max_nodes": 5}],
    });
    let output = answer(&[], instance.to_string().as_bytes());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answer = &answers(&output)[0];
    assert_eq!(
        answer["allocation"],
        json!([
            {"class": "a100", "nodes": 3},
            {"class": "h100", "nodes": 2},
            {"class": null, "nodes": 0},
        ])
    );
    let expected = 60.0 * 26.0 + 60.0 * 2.0 * 1.8 * 18.0;
    assert!(near(answer["objective"].as_f64().unwrap(), expected));
    assert_eq!(answer["solver"], json!("milp"));
    assert_eq!(
        (&answer["optimal"], &answer["gap"]),
        (&json!(true), &json!(0.0))
    );
    assert!(answer["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_is_no_instance_is_reported_with_its_line_and_the_rest_goes_on() {
    let with = |fields: Value| {
        json!({"id": 7, "pool": 3, "tfwd": 60, "trainers": [trainer(&fields)]}).to_string()
    };
    let classes = |trainer: Value, caps: Value| {
        let classes = json!([{"name": "a", "nodes": 3}]);
        json!({"tfwd": 1, "classes": classes, "trainers": [trainer], "caps": caps}).to_string()
    };
    let cases = [
        ("{\"id\":3,".to_owned(), "column 8: EOF"),
        ("[1,2]".to_owned(), "column"),
        ("null".to_owned(), "column"),
        ("{\"id\":1}".to_owned(), "missing field `tfwd`"),
        (json!({"tfwd": 1, "trainers": []}).to_string(), "\"pool\""),
        (
            json!({"tfwd": 1, "trainers": [], "pool": 3, "classes": []}).to_string(),
            "either",
        ),
        (
            json!({"tfwd": 1, "trainers": [], "pool": -3}).to_string(),
            "-3",
        ),
        (
            json!({"tfwd": -1, "trainers": [], "pool": 3}).to_string(),
            "horizon",
        ),
        (with(json!({"curve": []})), "trainer 0: a scaling curve"),
        (with(json!({"curve": [[2, 1], [1, 2]]})), "sort by nodes"),
        (with(json!({"scale_up_cost_s": -1})), "scale cost"),
        (with(json!({"weight": -1})), "weight -1"),
        (with(json!({"min": 1.5})), "1.5"),
        (with(json!({"class": "a100"})), "no class \"a100\""),
        (
            classes(trainer(&json!({"speed": {"b": 1}})), json!([])),
            "no class \"b\"",
        ),
        (
            classes(
                trainer(&json!({"current": 1, "speed": {"a": 1}})),
                json!([]),
            ),
            "of which class",
        ),
        (
            classes(trainer(&json!({"speed": {"a": -1}})), json!([])),
            "speed -1",
        ),
        (
            classes(
                trainer(&json!({"speed": {"a": 1}})),
                json!([{"trainers": [1], "max_nodes": 1}]),
            ),
            "cap 0 names trainer 1",
        ),
        (
            with(json!({"max": 4_294_967_295_u32})).replace("\"pool\":3", "\"pool\":4294967295"),
            "too many for one decision",
        ),
    ];
    let mut input = String::new();
    for (line, _) in &cases {
        input += &format!("{line}\n\n{}\n", simple(1));
    }
    let output = answer(&[], input.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    let (answers, complaints) = (answers(&output), complaints(&output));
    assert_eq!(answers.len(), 2 * cases.len());
    assert_eq!(complaints.len(), cases.len());
    for (i, (line, part)) in cases.iter().enumerate() {
        let number = 3 * i + 1;
        let error = answers[2 * i]["error"].as_str().unwrap();
        assert!(error.starts_with(&format!("line {number}: ")), "{error}");
        assert!(error.contains(part), "{error} for {line}");
        assert!(!error.contains("at line 1"), "{error}");
        assert_eq!(answers[2 * i]["objective"], Value::Null);
        assert!(complaints[i].starts_with(&format!("bftrainer: -:{number}: ")));
        assert_eq!(answers[2 * i + 1]["allocation"], json!([3]));
    }
    assert_eq!(answers[6]["id"], json!(1), "a readable id comes back");
}

#[test]
fn an_empty_file_has_no_answers_and_that_is_said() {
    for input in [&b""[..], b"\n\r\n  \n"] {
        let output = answer(&[], input);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.is_empty());
        assert_eq!(complaints(&output), ["bftrainer: -: no instance in it"]);
    }
}

#[test]
fn line_ends_may_be_of_either_kind_or_missing() {
    let input = format!("{}\r\n{}\n{}", simple(1), simple(2), simple(3));
    let output = answer(&[], input.as_bytes());
    assert_eq!(output.status.code(), Some(0));
    let ids: Vec<u64> = answers(&output)
        .iter()
        .map(|answer| answer["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn a_line_of_forty_megabytes_and_one_that_is_no_text_are_skipped() {
    let mut input = vec![b'x'; 40 << 20];
    input.extend_from_slice(b"\n\xff\xfe{\n");
    input.extend_from_slice(simple(5).as_bytes());
    let output = answer(&[], &input);
    assert_eq!(output.status.code(), Some(1));
    let answers = answers(&output);
    assert!(
        answers[0]["error"]
            .as_str()
            .unwrap()
            .contains("longer than")
    );
    assert_eq!(answers[1]["error"], json!("line 2: byte 1 is not UTF-8"));
    assert_eq!(answers[2]["id"], json!(5));
}

#[test]
fn answers_come_line_by_line() {
    use std::io::{BufRead, BufReader};
    let mut child = command(&["-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for id in 0..3 {
        writeln!(stdin, "{}", simple(id)).unwrap();
        let line = lines.next().unwrap().unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], json!(id));
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_dynamic_program_says_what_is_beyond_it() {
    let instance = json!({
        "tfwd": 60, "classes": [{"name": "a", "nodes": 4}, {"name": "b", "nodes": 2}],
        "trainers": [trainer(&json!({"speed": {"a": 1.0, "b": 2.0}}))],
    });
    let output = answer(&["--solver", "dp"], instance.to_string().as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert!(complaints(&output)[0].contains("beyond the solver dp; use --solver auto or milp"));
    let output = answer(&["--half-pool-bound"], instance.to_string().as_bytes());
    assert!(complaints(&output)[0].contains("half-pool bound is defined for \"pool\""));
}

#[test]
fn wrong_arguments_and_files_are_refused() {
    for arguments in [
        &["--limit", "0", "-"][..],
        &["--limit", "nan", "-"],
        &["--limit", "-1", "-"],
        &["--solver", "best", "-"],
        &[],
        &["/nonexistent/file"],
        &["/"],
    ] {
        let output = command(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}
