//! Tests of each rule with a sample that breaks the rule and a sample that keeps it.

mod imports;

use super::*;

/// Asserts that `rule` complains about the sample `wrong` and not about the sample `right`.
#[track_caller]
fn tells(rule: Rule, wrong: &[(&str, &str)], right: &[(&str, &str)]) {
    let complaints = rule(&Tree::sample(wrong));
    assert!(!complaints.is_empty(), "the rule let the wrong sample pass");
    assert_eq!(rule(&Tree::sample(right)), Vec::<Complaint>::new());
}

/// Returns a page with a table of crates. Each row holds a crate's name and the text of its second
/// cell, the dependencies.
fn crate_table(rows: &[(&str, &str)]) -> String {
    let rows = rows
        .iter()
        .map(|(name, on)| format!("| `{name}` | {on} |\n"));
    let rows: String = rows.collect();
    format!("# Map\n\n| crate | depends on |\n|---|---|\n{rows}\nText.\n")
}

#[test]
fn a_crate_whose_dependencies_are_not_those_of_the_table() {
    let manifest = |section: &str| format!("[{section}]\nbimetal-rt.workspace = true\n");
    let right = crate_table(&[("export", "`rt`"), ("rt", "")]);
    let page = ("ARCHITECTURE.md", right.as_str());
    let nothing = ("crates/rt/Cargo.toml", "[package]\n");
    for section in [
        "dependencies",
        "dev-dependencies",
        "target.'cfg(unix)'.dependencies",
    ] {
        let manifest = manifest(section);
        let crates = [("crates/export/Cargo.toml", manifest.as_str()), nothing];
        let without = crate_table(&[("export", ""), ("rt", "")]);
        let without = ("ARCHITECTURE.md", without.as_str());
        tells(
            crate_direction,
            &[without, crates[0], crates[1]],
            &[page, crates[0], crates[1]],
        );
        // A package outside of `crates/` may depend on any crate.
        let tests = ("tests/Cargo.toml", manifest.as_str());
        let alone = crate_table(&[("rt", "")]);
        let alone = ("ARCHITECTURE.md", alone.as_str());
        tells(
            crate_direction,
            &[page, tests, nothing],
            &[alone, tests, nothing],
        );
    }
    // The rule also complains about a dependency that only the table lists, a crate without a row,
    // and a manifest that is not TOML.
    let empty = ("crates/export/Cargo.toml", "[package]\n");
    tells(crate_direction, &[page, empty, nothing], &[]);
    tells(
        crate_direction,
        &[page, nothing, ("crates/new/Cargo.toml", "")],
        &[],
    );
    tells(
        crate_direction,
        &[page, ("crates/rt/Cargo.toml", "[no")],
        &[],
    );
}

#[test]
fn a_crate_that_depends_on_a_row_above() {
    let rt = "[dependencies]\nbimetal-export.workspace = true\n";
    let crates = [
        ("crates/rt/Cargo.toml", rt),
        ("crates/export/Cargo.toml", "[package]\n"),
    ];
    let wrong = crate_table(&[("export", ""), ("rt", "`export`")]);
    let right = crate_table(&[("rt", "`export`"), ("export", "")]);
    tells(
        crate_direction,
        &[("ARCHITECTURE.md", &wrong), crates[0], crates[1]],
        &[("ARCHITECTURE.md", &right), crates[0], crates[1]],
    );
}

#[test]
fn too_many_packages() {
    let lock = |count: usize| "[[package]]\nname = \"x\"\n".repeat(count);
    tells(
        few_packages,
        &[("Cargo.lock", &lock(165))],
        &[("Cargo.lock", &lock(164))],
    );
}

#[test]
fn a_layer_without_a_page() {
    let source = ("crates/block/src/layers/write_log.rs", "//! x");
    let page = ("docs/layers/write-log.md", "# write-log");
    tells(documented_layers, &[source], &[source, page]);
    let folder = ("crates/block/src/media/ssd/model.rs", "//! x");
    let root = ("crates/block/src/media/mod.rs", "//! x");
    tells(
        documented_layers,
        &[folder],
        &[folder, root, ("docs/ssds.md", "# ssd")],
    );
}

#[test]
fn empty_names() {
    tells(
        names,
        &[("crates/rt/src/utils.rs", "")],
        &[("crates/rt/src/utility_of_seeks.rs", "")],
    );
    tells(names, &[("crates/rt/helper/x.rs", "")], &[]);
    tells(
        names,
        &[("a.rs", "mod io_manager;\n")],
        &[("a.rs", "mod io_managed;\n")],
    );
}

#[test]
fn a_test_that_no_program_has() {
    let main = ("crates/rt/tests/main.rs", "mod named;");
    let named = ("crates/rt/tests/named.rs", "");
    let other = ("crates/rt/tests/other.rs", "");
    let manifest = ("crates/rt/Cargo.toml", "[[test]]\nname = \"other\"\n");
    let part = ("crates/rt/tests/named/part.rs", "");
    tells(
        tests_run,
        &[main, named, other],
        &[main, named, other, manifest, part],
    );
    tells(
        tests_run,
        &[main, named, other, ("crates/rt/Cargo.toml", "")],
        &[other],
    );
}

#[test]
fn a_long_file() {
    let lines = |count: usize| "\n".repeat(count);
    tells(
        file_length,
        &[("a.rs", &lines(801))],
        &[("a.rs", &lines(800))],
    );
}

#[test]
fn a_letter_beyond_ascii() {
    tells(
        ascii_only,
        &[("a.rs", "// 5 \u{b5}s")],
        &[("a.md", "5 \u{b5}s"), ("a.rs", "// 5 us")],
    );
    tells(ascii_only, &[(".ci/run", "\u{201c}")], &[]);
}

#[test]
fn a_file_without_a_head() {
    for path in ["crates/rt/src/a.rs", "tests/src/a.rs", "fuzz/src/a.rs"] {
        tells(
            module_head,
            &[(path, "use std::io;")],
            &[(path, "//! Why.\nuse std::io;")],
        );
    }
}

#[test]
fn banned_calls_are_found_in_code_only() {
    let place = "crates/block/src/a.rs";
    let wrong = [
        "let t = Instant::now();",
        "let t = std::time::SystemTime::now();",
        "std::thread::sleep(d);",
        "use std::collections::HashMap;",
        "use std::collections::{\n    BTreeMap,\n    HashSet,\n};",
        "dbg!(x);",
        "todo!()",
        "unimplemented!()",
    ];
    for code in wrong {
        let right = format!("// {}\nlet s = \"{code}\";", code.replace('\n', " "));
        tells(banned_calls, &[(place, code)], &[(place, &right)]);
    }
    let clock = ("crates/rt/src/real_time/clock.rs", wrong[0]);
    tells(
        banned_calls,
        &[("crates/rt/src/time.rs", wrong[0])],
        &[clock],
    );
}

#[test]
fn unsafe_outside_its_places() {
    let code = "fn f() { unsafe { g() } }";
    let right = [
        ("crates/rt/src/real_time/ring.rs", code),
        ("crates/capi/src/memory.rs", code),
        ("crates/export/src/ublk/queue.rs", code),
        ("crates/rdma/src/verbs/cm.rs", code),
        ("crates/index/src/node/arena/mod.rs", code),
        ("a.rs", "#![deny(unsafe_code)]"),
    ];
    tells(unsafe_places, &[("crates/block/src/a.rs", code)], &right);
    tells(
        unsafe_places,
        &[("crates/capi/src/session.rs", code)],
        &right,
    );
    tells(
        unsafe_places,
        &[("crates/export/src/nbd/connection.rs", code)],
        &right,
    );
    tells(
        unsafe_places,
        &[("crates/rdma/src/connection.rs", code)],
        &right,
    );
    tells(
        unsafe_places,
        &[("crates/index/src/node/image.rs", code)],
        &right,
    );
}

#[test]
fn an_ignored_test_without_a_reason() {
    let right = [("a.rs", "#[ignore = \"needs two machines\"]\n// #[ignore]")];
    tells(
        reasoned_ignore,
        &[("a.rs", "#[test]\n#[ignore]\nfn f() {}")],
        &right,
    );
}

#[test]
fn a_path_of_one_machine() {
    let wrong = concat!("see /wo", "rk/main/x");
    tells(
        local_paths,
        &[("a.md", wrong)],
        &[("a.md", "see ../net/work/x and $CARGO/home/x")],
    );
}

#[test]
fn a_code_block_without_a_beginning() {
    let right = "text\n```toml\n[a]\n```\ntext\n  ```\n  code\n  ```\n";
    tells(
        code_blocks_end,
        &[("docs/a.md", "text\n[a]\n```\ntext\n")],
        &[("docs/a.md", right)],
    );
}

#[test]
fn a_link_that_leads_nowhere() {
    let page = "[a](../README.md#start) [b](layers/) [c](https://x.org) [d](#here)\n\
                ```\n[in code](nothing.md)\n```\n";
    let right = [
        ("docs/a.md", page),
        ("README.md", ""),
        ("docs/layers/stripe.md", ""),
    ];
    tells(
        links_resolve,
        &[("docs/a.md", "[a](README.md)"), ("README.md", "")],
        &right,
    );
    tells(links_resolve, &[("a.md", "[a](../outside.md)")], &[]);
}

#[test]
fn an_example_that_is_not_toml() {
    let wrong = "text\n```toml\n[device.a\n```\n";
    let right = "```\n[device.a\n```\n```toml\n[device.a]\nsize = \"1MiB\"\n```\n";
    tells(toml_examples_parse, &[("a.md", wrong)], &[("a.md", right)]);
}

#[test]
fn every_rule_is_in_the_list() {
    let sources = [
        include_str!("crates.rs"),
        include_str!("imports/mod.rs"),
        include_str!("imports/rooms.rs"),
        include_str!("layout.rs"),
        include_str!("source.rs"),
        include_str!("pages.rs"),
        include_str!("prose.rs"),
        include_str!("terms.rs"),
    ];
    let rule = |l: &&str| l.starts_with("pub fn") && l.contains("(tree: &Tree) -> Vec<Complaint>");
    let written = sources.iter().flat_map(|s| s.lines()).filter(rule).count();
    assert_eq!(written, RULES.len());
}

#[test]
fn a_wide_line_of_prose() {
    let wide = "word ".repeat(20) + "end";
    assert_eq!(wide.len(), 103);
    let word = "x".repeat(103);
    for comment in ["// ", "/// ", "    //! "] {
        let bare = format!("fn a() {{}}\n{comment}{wide}\n");
        let indented = format!("{comment}Text.\n{comment}    {wide}\n");
        let after_code = format!("{comment}```\nfn a() {{}}\n{comment}{wide}\n");
        for wrong in [bare, indented, after_code] {
            tells(prose_columns, &[("a.rs", &wrong)], &[]);
        }
        let fenced = format!("{comment}```\n{comment}{wide}\n{comment}```\n");
        let code = format!("{comment}Text.\n{comment}\n{comment}    {wide}\n");
        let unbroken = format!("{comment}{word}\n");
        let table = format!("{comment}| {wide} |\n");
        for right in [fenced, code, unbroken, table] {
            assert_eq!(prose_columns(&Tree::sample(&[("a.rs", &right)])), [""; 0]);
        }
    }
    let wrong = [
        ("a.md", &*format!("Text.\n{wide}\n")),
        ("b.md", &*format!("```\ncode\n```\n{wide}\n")),
    ];
    for wrong in wrong {
        tells(
            prose_columns,
            &[wrong],
            &[("c.rs", &format!("let a = \"{wide}\";"))],
        );
    }
    let right = format!("# {wide}\n\n    {wide}\n    {wide}\n\n```\n{wide}\n```\n| {wide} |\n");
    tells(prose_columns, &[("a.md", &wide)], &[("a.md", &right)]);
}

#[test]
fn a_word_that_the_glossary_refuses() {
    let glossary = "# Terms\n\n| term | meaning | not |\n|---|---|---|\n\
        | `maintenance` | work that no request asks for | `upkeep`, `keep house` |\n\n\
        Words that say nothing: `whoever`.\n";
    let page = ("docs/glossary.md", glossary);
    let right = "//! Text about `upkeep` and housekeeping.\nfn maintain() {} // \"upkeep\"\n";
    let fenced = "# A\n\n```text\nupkeep\n```\nThe `upkeep` of old.\n";
    for wrong in [
        ("a.rs", "//! Whoever reads this.\n"),
        ("a.rs", "/// It does Upkeep, too.\n"),
        ("a.rs", "    // Threads that keep\n    // house.\n"),
        ("a.rs", "fn do_upkeep() {}\n"),
        ("a.rs", "struct UpkeepWork;\n"),
        ("a.rs", "const UPKEEP_NS: u64 = 1;\n"),
        ("docs/a.md", "The upkeep of a log.\n"),
    ] {
        tells(
            old_terms,
            &[page, wrong],
            &[page, ("a.rs", right), ("docs/a.md", fenced)],
        );
    }
    tells(old_terms, &[("a.rs", right)], &[page, ("a.rs", right)]);
    tells(old_terms, &[("docs/glossary.md", "# Terms\n")], &[page]);
}
