//! Tests of the rules about imports: import cycles, the order of rooms (tiers of modules), and the
//! reader of paths.

use super::tells;
use crate::tidy::imports::{Exception, Rooms, cycles_except, rooms_of_page, rooms_upwards};
use crate::tidy::{Complaint, Tree};

/// Applies the rule about import cycles with an empty list of exceptions. The exceptions of the
/// real tree would cause complaints here: the samples do not contain their cycles, and the rule
/// complains about an exception whose cycle does not exist.
fn no_circles(tree: &Tree) -> Vec<Complaint> {
    cycles_except(tree, &[])
}

#[test]
fn modules_that_import_each_other() {
    let top = (
        "crates/block/src/layers/mirror/mod.rs",
        "mod side;\nuse side::Side;",
    );
    let side = |import| ("crates/block/src/layers/mirror/side.rs", import);
    let pace = |import| ("crates/block/src/layers/mirror/pace.rs", import);
    let deep = |import| ("crates/block/src/layers/mirror/store/log.rs", import);
    let down = side("use super::pace::{Pace, Clients};\nuse crate::{error::IoError, request};");
    tells(
        no_circles,
        &[top, down, pace("use super::{config, side::Side};")],
        &[
            top,
            down,
            pace("use super::Mirror;\nuse crate::error::IoError;"),
        ],
    );
    // A cycle is also found if it leads through a third module, starts inside a folder, or uses
    // full paths.
    let third = deep("use crate::layers::mirror::{pace::{Pace, Clients}, superblock::Uuid};");
    tells(
        no_circles,
        &[
            third,
            pace("use super::side::Side;"),
            side("use super::store::Store;"),
            ("crates/block/src/layers/mirror/store/mod.rs", ""),
        ],
        &[
            third,
            pace("use super::way::Way;"),
            side("use super::store::Store;"),
        ],
    );
    // A folder and the modules inside it count as one module.
    let inner = deep("use super::Store;\nuse super::super::pace::Pace;");
    let outer = (
        "crates/block/src/layers/mirror/store/mod.rs",
        "mod log;\nuse self::log::Log;",
    );
    tells(
        no_circles,
        &[inner, outer, pace("use super::store::Store;")],
        &[inner, outer, pace("")],
    );
}

#[test]
fn paths_in_the_middle_of_code() {
    let inner = ("crates/rt/src/net/mod.rs", "mod a;\nmod b;");
    let a = |text| ("crates/rt/src/net/a.rs", text);
    let b = |text| ("crates/rt/src/net/b.rs", text);
    let up = b("use super::a::A;");
    for code in [
        "fn f() { let x = super::b::g(1); }",
        "fn f() -> crate::net::b::B<u8> { todo() }",
        "struct A(Vec<crate::net::b::B>);",
        "impl super::b::Told for A {}",
        "mod inside { fn f() { super::super::b::g() } }",
        "fn f() { use super::{self as net, b as other}; other::g() }",
        "pub use super::b;",
        "pub(crate) use crate::net::{\n    // What is told.\n    b::{B, C},\n};",
    ] {
        let right = [
            inner,
            a("// super::b::g()\nfn f() { \"crate::net::b::g\"; self::f(); crate::net::c::g() }"),
            up,
        ];
        tells(no_circles, &[inner, a(code), up], &right);
    }
    // An import in a module's tests is not an import of the module. The path in a visibility, such
    // as `pub(in super::super)`, is no import either.
    for code in [
        "#[cfg(test)]\nmod tests { use super::super::b::B; }",
        "#[cfg(test)]\nuse super::b::B;\nfn f() {}",
        "pub(in crate::net::b) fn f() {}",
    ] {
        assert_eq!(
            no_circles(&Tree::sample(&[inner, a(code), up])),
            Vec::<Complaint>::new()
        );
        let mixed = format!("{code}\nfn g() {{ super::b::g() }}");
        assert_ne!(
            no_circles(&Tree::sample(&[
                inner,
                ("crates/rt/src/net/a.rs", mixed.as_str()),
                up
            ])),
            Vec::<Complaint>::new()
        );
    }
}

#[test]
fn files_of_tests_are_left_out() {
    let files = |declared| {
        [
            ("crates/rt/src/lib.rs", declared),
            ("crates/rt/src/a.rs", "use crate::b::B;"),
            ("crates/rt/src/b.rs", "mod c;"),
            ("crates/rt/src/b/c.rs", "use crate::a::A;"),
        ]
    };
    tells(
        no_circles,
        &files("mod a;\nmod b;"),
        &files("mod a;\n#[cfg(test)]\npub(crate) mod b;"),
    );
}

#[test]
fn names_that_are_exported_anew_lead_to_where_they_are_defined() {
    let files = |root, a| {
        [
            ("crates/rt/src/lib.rs", root),
            ("crates/rt/src/a.rs", a),
            ("crates/rt/src/b.rs", "use crate::a::A;\npub struct B;"),
        ]
    };
    for root in [
        "pub mod a;\npub mod b;\npub use b::B;",
        "pub use self::b::B;",
        "use b::B as Other;\npub use Other as B;",
        "pub use b::*;",
    ] {
        tells(
            no_circles,
            &files(root, "use crate::B;"),
            &files(root, "use crate::C;"),
        );
    }
    // A glob import of the folder also imports the names that the folder re-exports.
    let root = "pub use b::B;";
    tells(
        no_circles,
        &files(root, "use super::*;"),
        &files("pub use a::A;", "use super::*;"),
    );
}

#[test]
fn a_circle_is_told_with_its_places() {
    let files = [
        ("crates/rt/src/a.rs", "\nuse crate::b::B;"),
        ("crates/rt/src/b.rs", "fn f() { crate::a::g() }"),
    ];
    assert_eq!(
        no_circles(&Tree::sample(&files)),
        ["rt: a (crates/rt/src/a.rs:2) -> b (crates/rt/src/b.rs:1) -> a"]
    );
}

#[test]
fn an_exception_covers_its_circle_and_goes_with_it() {
    let rule = |tree: &Tree| {
        let exception = Exception {
            folder: "rt::net",
            modules: &["a", "b"],
            why: "each wakes the other",
        };
        cycles_except(tree, &[exception])
    };
    let b = ("crates/rt/src/net/b.rs", "use super::a::A;");
    let c = ("crates/rt/src/net/c.rs", "use super::a::A;");
    let a = |text| ("crates/rt/src/net/a.rs", text);
    let circle = [a("use super::b::B;"), b, c];
    // An exception from the rule against import cycles is wrong if its cycle no longer exists, has
    // other modules, or is in another folder.
    tells(rule, &[a(""), b, c], &circle);
    tells(rule, &[a("use super::{b::B, c::C};"), b, c], &circle);
    let elsewhere = [
        ("crates/tls/src/net/a.rs", "use super::b::B;"),
        ("crates/tls/src/net/b.rs", "use super::a::A;"),
    ];
    tells(rule, &elsewhere, &circle);
    let gone = rule(&Tree::sample(&[a(""), b, c]));
    assert_eq!(
        gone,
        ["rt::net: a, b make no circle, so they need no exception: each wakes the other"]
    );
}

/// An order of two rooms (tiers), with two modules in the lower room.
const ORDER: Rooms = Rooms {
    folder: "block::media",
    rooms: &[&["high"], &["low", "lower"]],
};

#[test]
fn a_lower_room_that_imports_a_higher_one() {
    let rule = |tree: &Tree| rooms_upwards(tree, &[ORDER]);
    let high = |text| ("crates/block/src/media/high/mod.rs", text);
    let low = |text| ("crates/block/src/media/low.rs", text);
    let lower = ("crates/block/src/media/lower.rs", "use super::low::Low;");
    let right = [high("use super::{low, lower};"), low(""), lower];
    tells(
        rule,
        &[high(""), low("use super::high::High;"), lower],
        &right,
    );
    tells(
        rule,
        &[high(""), low("fn f() { crate::media::high::g() }"), lower],
        &right,
    );
    // Wrong: the table of rooms (tiers of modules) lists a module that does not exist, or a module
    // exists that is in no room.
    tells(rule, &[high(""), low("")], &right);
    let stray = ("crates/block/src/media/stray.rs", "");
    tells(rule, &[high(""), low(""), lower, stray], &right);
}

#[test]
fn a_page_that_tells_another_order() {
    let rule = |tree: &Tree| rooms_of_page(tree, &[ORDER]);
    let page =
        |rooms: &str| format!("Rooms of `block::media`, from the top down:\n\n{rooms}\nText.\n");
    let right = page("    high    above, of all\n    low,\n      lower     below\n");
    for wrong in [
        page("    low, lower    below\n    high    above\n"),
        page("    high    above\n    low    below\n"),
        page("    high    above\n    low    below\n    lower    more\n"),
        page("    high    above\n"),
        right.replace("block::media", "block::layers"),
    ] {
        tells(
            rule,
            &[("ARCHITECTURE.md", &wrong)],
            &[("ARCHITECTURE.md", &right)],
        );
    }
}
