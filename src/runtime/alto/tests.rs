//! HTTP against a server that says what a list tells it to, one request after the other.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::http::Http;
use crate::alto::{Answer, Fault, Request, Target};
use crate::config::{Alto, Config};

/// A server's answers in order, and what it was asked: the request's first line and its `Authorization` header.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

async fn server(answers: &'static [&'static str]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut answers = answers.iter();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = Vec::new();
            loop {
                let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else {
                    match stream.read_buf(&mut buffer).await {
                        Ok(0) | Err(_) => break,
                        Ok(_) => continue,
                    }
                };
                let head = String::from_utf8(buffer.drain(..end + 4).collect()).unwrap();
                let header = |name: &str| {
                    let rows = head.lines().filter_map(|l| l.split_once(": "));
                    rows.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_owned()).next()
                };
                let length: usize = header("content-length").map_or(0, |n| n.parse().unwrap());
                while buffer.len() < length {
                    stream.read_buf(&mut buffer).await.unwrap();
                }
                buffer.drain(..length);
                let line = head.lines().next().unwrap().to_owned();
                seen.lock().unwrap().push((line, header("authorization").unwrap_or_default()));
                let answer = answers.next().unwrap_or(&"500 Nothing Left\r\n");
                let text = format!("HTTP/1.1 {answer}Content-Length: 2\r\n\r\n{{}}");
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        }
    });
    Server { url, asked }
}

impl Server {
    /// What was asked so far.
    fn taken(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn password() -> PathBuf {
    let file = std::env::temp_dir().join(format!("sbe-alto-http-{}", std::process::id()));
    std::fs::write(&file, "secret\n").unwrap();
    file
}

fn alto(keys: &str) -> Alto {
    let text = format!(
        "[node]\nname = \"sbe.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.10:5060\"\n\
         [alto]\ndirectory = \"https://alto.test/\"\n{keys}_user = \"sbe\"\n{keys}_password_file = \"{}\"\n",
        password().display()
    );
    Config::from_toml_str(&text).unwrap_or_else(|e| panic!("{e:#?}")).alto.unwrap()
}

async fn ask(http: &Http, url: &str, post: bool, credentials: bool) -> Result<Answer, Fault> {
    let request = Request {
        server: 0,
        ticket: 1,
        target: Target::Http(url.parse().unwrap()),
        post: post.then(|| ("application/alto-endpointcostparams+json", b"{\"a\":1}".to_vec())),
        accept: "application/json".into(),
        if_none_match: None,
        credentials,
        limit: 1000,
        within: Duration::from_secs(10),
    };
    http.fetch(&request).await
}

/// A parameter of a Digest answer.
fn part(header: &str, name: &str) -> String {
    let from = header.find(&format!(" {name}=")).unwrap() + name.len() + 2;
    header[from..].trim_start_matches('"').split(['"', ',']).next().unwrap().to_owned()
}

const CHALLENGE: &str = "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"b\", Digest realm=\"d\", nonce=\"one\", qop=\"auth\"\r\n";
const STALE: &str =
    "401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"d\", nonce=\"two\", qop=\"auth\", stale=true\r\n";
const GOOD: &str = "200 OK\r\n";
const NEXT: &str = "200 OK\r\nAuthentication-Info: qop=auth, nextnonce=\"three\"\r\n";

#[tokio::test]
async fn a_nonce_is_used_on_and_replaced_when_it_is_stale() {
    let s = server(&[CHALLENGE, GOOD, GOOD, STALE, NEXT, GOOD]).await;
    let http = Http::new(&alto("digest"));
    for _ in 0..4 {
        assert_eq!(ask(&http, &format!("{}/a?b=c", s.url), true, true).await.unwrap().status, 200);
    }
    let asked = s.taken();
    assert_eq!(asked.len(), 6, "one round more for each challenge: {asked:?}");
    assert_eq!(asked[0].1, "", "nothing is told before it is asked for");
    let counted: Vec<_> = asked[1..].iter().map(|(_, h)| (part(h, "nonce"), part(h, "nc"))).collect();
    let expect = [("one", 1), ("one", 2), ("one", 3), ("two", 1), ("three", 1)];
    let expect: Vec<_> =
        expect.iter().map(|(nonce, nc)| ((*nonce).to_owned(), format!("{nc:08x}"))).collect();
    assert_eq!(counted, expect);
    for (line, header) in &asked[1..] {
        assert_eq!(line, "POST /a?b=c HTTP/1.1");
        assert!(header.starts_with("Digest ") && part(header, "uri") == "/a?b=c", "{header}");
        assert!(!header.contains("secret"));
    }
}

#[tokio::test]
async fn a_password_that_is_not_the_servers_is_tried_once() {
    let s = server(&[CHALLENGE, CHALLENGE, GOOD]).await;
    let http = Http::new(&alto("digest"));
    assert_eq!(ask(&http, &s.url, false, true).await.unwrap().status, 401);
    assert_eq!(s.taken().len(), 2);
    // However often a server says so.
    let s = server(&[CHALLENGE, STALE, STALE, STALE, GOOD]).await;
    assert_eq!(ask(&http, &s.url, false, true).await.unwrap().status, 401);
    assert_eq!(s.taken().len(), 3);
}

#[tokio::test]
async fn a_server_that_wants_the_password_itself_does_not_get_it_without_tls() {
    const BASIC: &str = "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"b\"\r\n";
    for (keys, words) in [("digest", "HTTP 401, Basic instead of Digest"), ("basic", "")] {
        let s = server(&[BASIC, GOOD]).await;
        let got = ask(&Http::new(&alto(keys)), &s.url, false, true).await;
        match got {
            Err(fault) => assert_eq!(fault.to_string(), words),
            Ok(answer) => assert_eq!((answer.status, words), (401, "")),
        }
        let asked = s.taken();
        assert!(asked.len() == 1 && asked[0].1.is_empty(), "{asked:?}");
    }
}

#[tokio::test]
async fn who_gets_no_credentials_gets_no_answer_to_a_challenge() {
    let s = server(&[CHALLENGE, GOOD]).await;
    assert_eq!(ask(&Http::new(&alto("digest")), &s.url, false, false).await.unwrap().status, 401);
    assert_eq!(s.taken().len(), 1);
}
