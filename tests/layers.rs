//! The layering of the crate: a module may use those to its left, never those to its right.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Layers from the bottom up; modules of one layer do not know each other.
const LAYERS: &[&[&str]] = &[
    &["flow"],
    &["wire"],
    &["config"],
    &["transaction", "location"],
    &["peering", "alto"],
    &["proxy"],
    &["shard"],
    &["runtime"],
    &["admin"],
    &["demo"],
    &["cli", "log"],
];

/// Layers that must not know clocks, sockets, tasks or locks.
const PURE: &[&str] = &["flow", "wire", "transaction", "location", "alto", "peering", "proxy", "shard"];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|l| l.contains(&module))
}

fn rust_files(dir: &Path, out: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable source tree") {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The top-level module that a file belongs to.
fn module_of(path: &Path, root: &Path) -> String {
    let first = path.strip_prefix(root).expect("a path below src").components().next().expect("a name");
    let name = first.as_os_str().to_string_lossy();
    name.strip_suffix(".rs").unwrap_or(&name).to_owned()
}

fn sources() -> Vec<(String, String, std::path::PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    files.sort();
    assert!(files.len() > 40, "the source tree has been read");
    files
        .into_iter()
        .map(|p| (module_of(&p, &root), fs::read_to_string(&p).expect("a readable file"), p))
        .collect()
}

/// Modules named by `crate::NAME` in a line of code (comments aside).
fn used(line: &str) -> impl Iterator<Item = String> + '_ {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices("crate::").map(|(at, _)| {
        code[at + 7..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
    })
}

#[test]
fn no_module_uses_a_layer_above_its_own() {
    let mut wrong = BTreeSet::new();
    for (module, text, path) in sources() {
        let Some(own) = layer_of(&module) else {
            assert!(["lib", "main"].contains(&module.as_str()), "{module} has no layer: give it one");
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for name in used(line) {
                let Some(other) = layer_of(&name) else { continue };
                if name != module && other >= own {
                    wrong.insert(format!("{}:{}: {module} uses {name}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_pure_layers_know_no_clock_no_socket_no_task_and_no_lock() {
    let forbidden = [
        "Instant::now",
        "SystemTime",
        "tokio",
        "std::net::TcpStream",
        "UdpSocket",
        "std::thread",
        "Mutex",
        "RwLock",
        "rand::rng()",
        "thread_rng",
        "println!",
        "tracing::",
    ];
    let mut wrong = BTreeSet::new();
    for (module, text, path) in sources() {
        let test = path.components().any(|c| c.as_os_str() == "tests") || path.ends_with("tests.rs");
        if !PURE.contains(&module.as_str()) || test {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            if let Some(word) = forbidden.iter().find(|w| line.contains(*w)) {
                wrong.insert(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_source_file_is_longer_than_600_lines() {
    let long: Vec<String> = sources()
        .into_iter()
        .filter(|(_, text, _)| text.lines().count() > 600)
        .map(|(_, text, path)| format!("{}: {}", path.display(), text.lines().count()))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
}
