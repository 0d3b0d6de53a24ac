//! Reading from files.

use std::path::{Path, PathBuf};

use super::super::{Config, complaint, find, load};
use super::{BARE, CORE};

/// A file of its own, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, octets: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("sbe-config-{}-{name}", std::process::id()));
        std::fs::write(&path, octets).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn errors(path: &Path) -> String {
    load(path).unwrap_err().iter().map(|e| format!("{e}\n")).collect()
}

#[test]
fn a_file_that_is_not_there_is_an_error_with_a_remedy() {
    assert_eq!(
        errors(Path::new("/nowhere/sbe.toml")),
        "/nowhere/sbe.toml:1:1: the file cannot be read (No such file or directory), name an existing configuration with --config\n"
    );
    assert!(errors(&std::env::temp_dir()).contains("cannot be read"), "a directory");
}

#[test]
fn a_file_that_is_not_utf8_is_refused_where_it_stops_being_so() {
    let file = Scratch::new("latin1.toml", b"[node]\n# \xe4\n");
    assert_eq!(
        errors(&file.0),
        format!("{}:2:3: this is not UTF-8, save the file as UTF-8\n", file.0.display())
    );
}

#[test]
fn a_file_named_inside_that_cannot_be_read_is_a_warning() {
    let text = format!(
        "{BARE}{CORE}[[listen]]\ntransport = \"tls\"\nbind = \"192.0.2.10:5061\"\n[tls]\ncertificate = \"/nowhere/c\"\nkey = \"/dev/null\"\n"
    );
    let file = Scratch::new("tls.toml", text.as_bytes());
    let (_, warnings) = load(&file.0).unwrap();
    let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    let expected =
        "13:15: warning: /nowhere/c cannot be read (No such file or directory), put it there before sbe run";
    assert_eq!(lines, [format!("{}:{expected}", file.0.display())]);
}

#[test]
fn a_complaint_about_what_a_file_holds_has_the_place_of_the_file_in_the_configuration() {
    let text = format!(
        "{BARE}[tls]\ncertificate = \"c\"\nkey = \"k\"\n[[peer]]\nname = \"a\"\n[[peer]]\nname = \"b\"\nkey = \"kb\"\n"
    );
    let file = Scratch::new("complaint.toml", text.as_bytes());
    let place = |table, key| {
        let error = complaint(&file.0, table, key, "it is wrong".into(), "mend it".into());
        let text = error.to_string();
        text.strip_prefix(&file.0.display().to_string()).unwrap().to_owned()
    };
    assert_eq!(place(("tls", None), "key"), ":8:7: it is wrong, mend it");
    assert_eq!(place(("peer", Some("b")), "key"), ":13:7: it is wrong, mend it");
    assert_eq!(place(("peer", Some("nobody")), "key"), ":1:1: it is wrong, mend it");
    assert_eq!(place(("tls", None), "crl"), ":1:1: it is wrong, mend it");
}

#[test]
fn the_named_file_goes_before_the_usual_places() {
    assert_eq!(find(Some(Path::new("x.toml"))).unwrap(), PathBuf::from("x.toml"));
    assert_eq!(
        Config::default_paths().map(|p| p.to_str().unwrap()),
        ["config/sbe.toml", "/etc/sbe/sbe.toml"]
    );
}

#[test]
fn a_text_needs_no_file() {
    assert!(Config::from_toml_str(BARE).is_ok());
    assert!(Config::from_toml_str("").is_err());
}
