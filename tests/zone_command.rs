//! `sbe resolve --zone` and `sbe zone check` as processes: no network, every exit status.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A directory of files, gone when dropped.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("sbe-zone-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Exit status, standard output and standard error.
fn sbe(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_sbe"))
        .args(args)
        .current_dir(dir)
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

const TWO: &str = r#"
$TTL 1d
$ORIGIN a.test.
@ SOA ns hostmaster 1 1h 15m 1w 600
  NAPTR 10 10 s SIP+D2T "" _sip._tcp
_sip._tcp 1h SRV 1 10 5060 s1
          1h SRV 1 30 5060 s2
          1h SRV 2 0  5060 s3.elsewhere.test.
s1 A 192.0.2.1
s2 A 192.0.2.2
   A 192.0.2.3
$ORIGIN b.test.
@ SOA ns hostmaster 1 1h 15m 1w 600
_sip._udp 1h SRV 1 10 5060 s1
s1 A 198.51.100.1
"#;

/// Instance, first, order and health of all candidates, in the order of trying.
fn rows(answer: &Value) -> Vec<(String, f64, u64, String)> {
    let legs = answer["legs"].as_array().unwrap();
    let mut rows: Vec<_> = legs
        .iter()
        .flat_map(|l| l["candidates"].as_array().unwrap())
        .map(|c| {
            (
                c["instance"].as_str().unwrap().to_owned(),
                c["first"].as_f64().unwrap(),
                c["order"].as_u64().unwrap_or(u64::MAX),
                c["health"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    rows.sort_by_key(|r| r.2);
    rows
}

fn row(instance: &str, first: f64, order: u64, health: &str) -> (String, f64, u64, String) {
    (instance.to_owned(), first, order, health.to_owned())
}

#[test]
fn a_zone_file_answers_and_a_name_outside_of_it_is_remarked() {
    let files = Files::new("resolve");
    let zone = files.put("two.zone", TWO);
    let (status, out, err) = sbe(&files.0, &["resolve", "sip:a.test", "--zone", &zone, "--json"]);
    assert_eq!((status, &*err), (0, ""));
    let answer = json(&out);
    assert_eq!(
        rows(&answer),
        [
            row("tcp:192.0.2.2:5060", 0.75, 1, "unknown"),
            row("tcp:192.0.2.3:5060", 0.0, 2, "unknown"),
            row("tcp:192.0.2.1:5060", 0.25, 3, "unknown"),
        ]
    );
    assert_eq!(
        answer["notes"],
        Value::from(vec![format!(
            "s3.elsewhere.test is outside of the zones in {zone}: taken as a name that does not exist"
        )])
    );
    assert_eq!(sbe(&files.0, &["resolve", "sip:b.test", "--zone", &zone]).0, 0);
    let (status, out, _) = sbe(&files.0, &["resolve", "sip:c.test", "--zone", &zone]);
    assert_eq!(status, 1, "{out}");
    assert!(out.contains("note: c.test is outside of the zones"), "{out}");
}

#[test]
fn a_faulty_zone_file_ends_with_2_and_each_fault_has_its_line() {
    let files = Files::new("faulty");
    let zone = files.put("bad.zone", "$ORIGIN a.test.\n@ 60 A 192.0.2\n\n@ 60 SVR 1 1 1 b\n");
    let (status, out, err) = sbe(&files.0, &["resolve", "sip:a.test", "--zone", &zone]);
    assert_eq!((status, &*out), (2, ""));
    let lines: Vec<&str> = err.lines().collect();
    assert!(lines[0].starts_with(&format!("{zone}:2: A: ")), "{err}");
    assert_eq!(lines[1], format!("{zone}:4: SVR is no record type"));
    assert_eq!(sbe(&files.0, &["resolve", "sip:a.test", "--zone", "nothing.zone"]).0, 2);
}

#[test]
fn calls_go_on_without_what_is_supposed_to_be_down() {
    let files = Files::new("whatif");
    let zone = files.put("two.zone", TWO);
    let look = |uri: &str, down: &str| {
        let (status, out, err) =
            sbe(&files.0, &["resolve", uri, "--zone", &zone, "--json", "--what-if", &format!("down={down}")]);
        assert_eq!((status, &*err), (0, ""));
        json(&out)
    };
    assert_eq!(
        rows(&look("sip:a.test", "192.0.2.2")),
        [
            row("tcp:192.0.2.3:5060", 0.75, 1, "unknown"),
            row("tcp:192.0.2.1:5060", 0.25, 2, "unknown"),
            row("tcp:192.0.2.2:5060", 0.0, 3, "down"),
        ]
    );
    assert_eq!(
        rows(&look("sip:a.test", "tcp:192.0.2.2:5060,192.0.2.3")),
        [
            row("tcp:192.0.2.1:5060", 1.0, 1, "unknown"),
            row("tcp:192.0.2.2:5060", 0.0, 2, "down"),
            row("tcp:192.0.2.3:5060", 0.0, 3, "down"),
        ]
    );
    let slip = look("sip:a.test", "192.0.2.99");
    assert!(
        slip["notes"]
            .to_string()
            .contains("192.0.2.99 is supposed to be down, and is none of the candidates")
    );
}

#[test]
fn a_second_party_is_tried_after_all_of_the_first_and_no_more_than_max_tries() {
    let files = Files::new("parties");
    let zone = files.put("two.zone", TWO);
    let config = files.put(
        "sbe.toml",
        "[node]\nname = \"edge.test\"\ndomains = [\"own.test\"]\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:5060\"\n\
         [[listen]]\ntransport = \"tcp\"\nbind = \"127.0.0.1:5060\"\n[sip]\nmax_tries = 4\n\
         [core]\nnext_hops = [\"sip:127.0.0.11\"]\nsources = [\"127.0.0.11/32\"]\n\
         [[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\nsources = [\"192.0.2.0/24\"]\n\
         [[peer]]\nname = \"b\"\ndomains = [\"b.test\"]\nsources = [\"198.51.100.0/24\"]\n\
         [[route]]\nprefix = \"+44\"\npeers = [\"a\", \"b\"]\n",
    );
    let look = |more: &[&str]| {
        let args =
            [&["resolve", "sip:+44123@own.test", "--config", &config, "--zone", &zone, "--json"], more]
                .concat();
        let (status, out, err) = sbe(&files.0, &args);
        assert_eq!(status, 0, "{out}{err}");
        json(&out)
    };
    assert_eq!(
        rows(&look(&[])),
        [
            row("tcp:192.0.2.2:5060", 0.75, 1, "unknown"),
            row("tcp:192.0.2.3:5060", 0.0, 2, "unknown"),
            row("tcp:192.0.2.1:5060", 0.25, 3, "unknown"),
            row("udp:198.51.100.1:5060", 0.0, 4, "unknown"),
        ]
    );
    std::fs::write(
        &config,
        std::fs::read_to_string(&config).unwrap().replace("max_tries = 4", "max_tries = 3"),
    )
    .unwrap();
    assert_eq!(rows(&look(&[]))[3], row("udp:198.51.100.1:5060", 0.0, u64::MAX, "unknown"));
}

#[test]
fn the_check_of_a_zone_ends_with_1_where_there_are_errors_only() {
    let files = Files::new("check");
    // Without $ORIGIN, names are below the domain.
    let good = "$TTL 1h\n@ SOA ns h 1 1h 15m 1w 600\n@ 1d NAPTR 1 1 s SIP+D2U \"\" _sip._udp\n\
                _sip._udp SRV 1 1 5060 s1\n          SRV 1 1 5060 s2\ns1 A 198.51.100.1\ns2 A 198.51.100.2\n";
    let zone = files.put("good.zone", good);
    let (status, out, err) = sbe(&files.0, &["zone", "check", "A.test", "--zone", &zone, "--json"]);
    assert_eq!((status, &*err), (0, ""), "{out}");
    let answer = json(&out);
    assert_eq!(answer["domain"], "a.test");
    assert_eq!((&answer["errors"], &answer["warnings"]), (&0.into(), &2.into()), "TLS and TCP: {out}");
    assert!(answer["fragment"].as_str().unwrap().contains("_sip._udp IN SRV 1 1 5060 s2"), "{out}");
    for finding in answer["findings"].as_array().unwrap() {
        for field in ["severity", "code", "about", "what", "why", "remedy"] {
            assert!(finding[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {finding}");
        }
    }
    let zone = files.put("bad.zone", &good.replace("s2 A 198.51.100.2", "s2 CNAME s1"));
    let (status, out, _) = sbe(&files.0, &["zone", "check", "a.test", "--zone", &zone]);
    assert_eq!(status, 1);
    assert!(out.contains("error: _sip._udp.a.test. SRV 1 1 5060 s2.a.test. (srv_target_alias)\n"), "{out}");
    assert!(
        out.contains("1 errors, 3 warnings, 1 infos\n\nsuggested records:\n\n$ORIGIN a.test.\n"),
        "{out}"
    );
    let other = files.put("two.zone", TWO);
    for wrong in [
        &["zone", "check", "192.0.2.1"][..],
        &["zone", "check", "c.test", "--zone", &other],
        &["zone", "check", "a.test", "--zone", "no.zone"],
        &["zone", "check", "a.test", "--server", "ns.a.test"],
    ] {
        let (status, out, err) = sbe(&files.0, wrong);
        assert_eq!((status, &*out), (2, ""), "{wrong:?} {err}");
        assert!(!err.is_empty(), "{wrong:?}");
    }
}
