//! The five papers behind this project: each of their tables, figures and printed claims, beside
//! what the code of this project gives.
//!
//! The catalogue is data. Values come from the experiments of `bimetal-sim`, from the cache
//! simulation and from plans of this crate, and one rule gives each item its verdict. A report is
//! computed from stored runs only, so a report over parts from several machines equals that of one
//! machine. This module must never run a policy, a layer or a load of its own, and must never leave
//! out an item.

mod buffers;
mod cell;
mod folder;
mod item;
mod linux;
mod list;
mod mirror;
mod page;
mod pairs;
mod plans;
mod report;
mod san;
mod scope;
mod traces;
mod tree;
mod verdict;

use std::collections::BTreeSet;

pub use cell::{Cell, CellError, Raw};
pub use folder::{Folder, FolderError, Made, Missing, PlanFile, Runs};
pub use item::{Item, Kind, Source};
pub use list::markdown;
pub use page::html;
pub use report::{ItemReport, Report, Values, report};
pub use scope::{Scale, Scope};
pub use traces::{Traces, TracesError};
pub use verdict::{FACTOR, Verdict};

use crate::settings::content_hash;

/// A paper.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Number of the source.
    pub number: u8,
    /// Title.
    pub title: &'static str,
    /// Authors.
    pub authors: &'static str,
}

/// The papers.
pub const PAPERS: [Paper; 5] = [
    Paper {
        number: 1,
        title: "A Hetero-Mirroring Scheme to Improve I/O Performance of High-Speed Hybrid Storage",
        authors: "Siwoo Byun",
    },
    Paper {
        number: 2,
        title: "A Performance Evaluation of Hot-Cold Index for High-Speed Flash Storages",
        authors: "Siwoo Byun and Moonhaeng Hu",
    },
    Paper {
        number: 3,
        title: "I/O Performance Analysis of SSD on Linux",
        authors: "Hang-Jun Min and Dong-Kun Shin",
    },
    Paper {
        number: 4,
        title: "An Asymmetric Buffer Management Policy for SSD",
        authors: "Hoyoung Jung, Sooyong Kang and Jaehyuk Cha",
    },
    Paper {
        number: 5,
        title: "A SAN Optimization Scheme for High-Performance Storage System",
        authors: "In-Seon Lee",
    },
];

/// Returns all items, in the order of the papers: tables, figures, claims.
pub fn items() -> impl Iterator<Item = &'static Item> {
    let of = [
        mirror::ITEMS,
        tree::ITEMS,
        linux::ITEMS,
        buffers::ITEMS,
        san::ITEMS,
    ];
    of.into_iter().flatten()
}

/// Error of a selection of items.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// No paper has this number.
    #[error("no source {0}, expected 1 to 5")]
    Source(u8),
    /// No item has this identifier.
    #[error("no item `{id}`, expected one of {known}")]
    Item {
        /// The identifier.
        id: String,
        /// The identifiers of the source, or of all sources.
        known: String,
    },
    /// The selection is empty.
    #[error("no item of source {0} is one of the given items")]
    Empty(u8),
}

/// Returns the items of a source, or of all sources, limited to the identifiers `only` if there are
/// any.
///
/// # Errors
/// If a source or an item does not exist.
pub fn selected(source: Option<u8>, only: &[String]) -> Result<Vec<&'static Item>, SelectionError> {
    if let Some(number) = source.filter(|of| PAPERS.iter().all(|paper| paper.number != *of)) {
        return Err(SelectionError::Source(number));
    }
    for id in only {
        if items().all(|item| item.id != id) {
            let same = |item: &&Item| id.split('.').next() == item.id.split('.').next();
            let mut known: Vec<&str> = items().filter(same).map(|item| item.id).collect();
            if known.is_empty() {
                known = items().map(|item| item.id).collect();
            }
            return Err(SelectionError::Item {
                id: id.clone(),
                known: known.join(", "),
            });
        }
    }
    let is_meant = |item: &&Item| {
        let of_source = source.is_none_or(|source| item.source_number() == source);
        of_source && (only.is_empty() || only.iter().any(|id| id == item.id))
    };
    let meant: Vec<&Item> = items().filter(is_meant).collect();
    match (meant.is_empty(), source) {
        (true, Some(source)) => Err(SelectionError::Empty(source)),
        _ => Ok(meant),
    }
}

/// Returns the runs that the items need, each once, in the order of the items.
pub fn cells(scope: &Scope, items: &[&Item]) -> Vec<Cell> {
    let mut known = BTreeSet::new();
    let mut cells = Vec::new();
    for item in items {
        if let Source::Run(experiment) = item.source {
            let of_item = (experiment.cells)(scope).into_iter();
            cells.extend(of_item.filter(|cell| known.insert(cell.id())));
        }
    }
    cells
}

/// Returns the plan of a report.
pub fn plan(scope: &Scope, items: &[&Item], cells: &[Cell]) -> PlanFile {
    let ids: Vec<String> = cells.iter().map(Cell::id).collect();
    PlanFile {
        schema: cell::SCHEMA,
        scale: scope.scale.name().to_owned(),
        seed: scope.first_seed,
        seeds: scope.scale.seeds(),
        items: items.iter().map(|item| item.id.to_owned()).collect(),
        id: content_hash(&ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(scale: Scale) -> Scope {
        Scope {
            scale,
            first_seed: 1,
            traces: Traces::default(),
        }
    }

    /// The figures and tables of each paper, counted in the papers.
    #[test]
    fn no_figure_and_no_table_is_missing() {
        let count = |number, kind| {
            let of = items().filter(|item| item.source_number() == number && item.kind == kind);
            of.count()
        };
        let figures = [1, 2, 3, 4, 5].map(|number| count(number, Kind::Figure));
        let tables = [1, 2, 3, 4, 5].map(|number| count(number, Kind::Table));
        assert_eq!(figures, [10, 2, 11, 12, 7]);
        assert_eq!(tables, [4, 1, 3, 1, 2]);
    }

    #[test]
    fn items_are_well_formed() {
        let mut known = BTreeSet::new();
        for item in items() {
            assert!(known.insert(item.id), "{} twice", item.id);
            let number = item.id.split_once('.').unwrap().1;
            let letter = match item.kind {
                Kind::Figure => "",
                Kind::Table => "t",
                Kind::Claim => "c",
            };
            assert!(number.strip_prefix(letter).unwrap().parse::<u32>().is_ok());
            let keys: BTreeSet<&str> = item.claims.iter().map(|claim| claim.key).collect();
            assert_eq!(keys.len(), item.claims.len(), "{}", item.id);
            match item.source {
                Source::Run(_) => {}
                Source::NotRun(why) => assert!(why.ends_with('.') && !item.claims.is_empty()),
                Source::Nothing(what) => assert!(what.ends_with('.') && item.claims.is_empty()),
            }
        }
    }

    #[test]
    fn a_selection_names_what_exists() {
        let only = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(selected(None, &[]).unwrap().len(), items().count());
        assert_eq!(selected(Some(1), &only(&["1.7"])).unwrap()[0].id, "1.7");
        let error = |source, ids: &[&str]| selected(source, &only(ids)).err().unwrap().to_string();
        assert!(error(Some(9), &[]).contains("expected 1 to 5"));
        assert!(error(None, &["1.70"]).contains("1.t1, 1.t2"));
        assert!(error(None, &["7.7"]).contains("1.t1"));
        assert!(error(Some(2), &["1.7"]).contains("source 2"));
    }

    #[test]
    fn every_run_is_made_once_and_depends_on_its_seed() {
        let all = selected(None, &[]).unwrap();
        for scale in [Scale::Small, Scale::Default, Scale::Full] {
            let cells = cells(&scope(scale), &all);
            let ids: BTreeSet<String> = cells.iter().map(Cell::id).collect();
            assert_eq!(ids.len(), cells.len());
            let other = Scope {
                first_seed: 100,
                ..scope(scale)
            };
            let others = super::cells(&other, &all);
            assert!(others.iter().all(|cell| !ids.contains(&cell.id())));
        }
    }
}
