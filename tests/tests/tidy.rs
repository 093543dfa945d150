//! The rules of `bimetal_tests::tidy`, run on this tree.

use bimetal_tests::tidy::{RULES, Tree};
use std::path::Path;

#[test]
fn the_tree_keeps_its_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the root of the workspace");
    let tree = Tree::of_repository(root);
    assert!(
        tree.rust().count() > 10,
        "the tree was not found at {}",
        root.display()
    );
    let mut report = String::new();
    for (rule, check) in RULES {
        for complaint in check(&tree) {
            report += &format!("{rule}: {complaint}\n");
        }
    }
    assert!(report.is_empty(), "\n{report}");
}
