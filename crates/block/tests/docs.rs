//! Checks that the program accepts every configuration in the documentation unchanged.

use std::path::{Path, PathBuf};

use bimetal_block::graph::read_graph;

/// Returns the blocks of a page that are fenced as `toml`.
fn examples(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

fn pages(folder: &str) -> Vec<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(folder);
    let entries = std::fs::read_dir(&path).expect("the folder is there");
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

#[test]
fn every_example_of_a_layer_or_medium_is_a_configuration() {
    for page in ["layers", "media"].into_iter().flat_map(pages) {
        let text = std::fs::read_to_string(&page).unwrap();
        let name = page.file_stem().unwrap().to_string_lossy().into_owned();
        let examples = examples(&text);
        // The layers `atomic` and `fault` have no configuration type of their own, so their pages
        // show no example.
        let is_typeless = matches!(name.as_str(), "atomic" | "fault");
        assert_eq!(examples.is_empty(), is_typeless, "{name}");
        for example in examples {
            let graph = read_graph(&page, &example).unwrap_or_else(|e| panic!("{e}"));
            let shown = graph.nodes().values().any(|node| node.kind() == name);
            assert!(
                shown || name == "timing",
                "{name} shows no device of its kind"
            );
        }
    }
}
