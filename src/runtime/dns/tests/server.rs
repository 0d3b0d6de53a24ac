//! A name server on loopback, UDP and TCP on one port, that answers from a script.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NAPTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

/// A question that was asked: `udp` or `tcp`, name without final dot, type.
pub type Asked = (&'static str, String, RecordType);

/// Makes the answer to a question; `None`: silence.
pub type Script = dyn Fn(&Message, &'static str) -> Option<Message> + Send + Sync;

pub struct Server {
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Server {
    pub async fn start(
        script: impl Fn(&Message, &'static str) -> Option<Message> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0", script).await
    }

    pub async fn start_at(
        at: &str,
        script: impl Fn(&Message, &'static str) -> Option<Message> + Send + Sync + 'static,
    ) -> Self {
        let script: Arc<Script> = Arc::new(script);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let listener = TcpListener::bind(at).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(addr).await.unwrap();
        let (udp_script, udp_asked) = (script.clone(), asked.clone());
        let udp = tokio::spawn(async move {
            let mut buf = [0; 4096];
            loop {
                let Ok((n, from)) = socket.recv_from(&mut buf).await else {
                    continue;
                };
                if let Some(answer) = serve(&buf[..n], "udp", &*udp_script, &udp_asked) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        let tcp_asked = asked.clone();
        let tcp = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (script, asked) = (script.clone(), tcp_asked.clone());
                tokio::spawn(async move {
                    while let Ok(n) = stream.read_u16().await {
                        let mut buf = vec![0; n.into()];
                        stream.read_exact(&mut buf).await.unwrap();
                        if let Some(answer) = serve(&buf, "tcp", &*script, &asked) {
                            stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
                            stream.write_all(&answer).await.unwrap();
                        }
                    }
                });
            }
        });
        Self { addr, asked, tasks: vec![udp, tcp] }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

fn serve(bytes: &[u8], by: &'static str, script: &Script, asked: &Mutex<Vec<Asked>>) -> Option<Vec<u8>> {
    let query = Message::from_vec(bytes).unwrap();
    let question = &query.queries[0];
    let name = question.name.to_ascii().trim_end_matches('.').to_owned();
    asked.lock().unwrap().push((by, name, question.query_type));
    script(&query, by).map(|m| m.to_vec().unwrap())
}

/// An empty answer with this code.
pub fn reply(query: &Message, code: ResponseCode) -> Message {
    let mut message = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    message.metadata.response_code = code;
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.add_queries(query.queries.clone());
    message
}

/// The name asked for, without final dot.
pub fn asked_name(query: &Message) -> String {
    query.queries[0].name.to_ascii().trim_end_matches('.').to_owned()
}

pub fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).unwrap();
    name.set_fqdn(true);
    name
}

/// A record as `owner ttl TYPE data…`.
pub fn record(text: &str) -> Record {
    let mut words = text.split_whitespace();
    let mut next = || words.next().unwrap();
    let (owner, ttl, kind) = (name(next()), next().parse().unwrap(), next());
    let data = match kind {
        "A" => RData::A(A(next().parse().unwrap())),
        "AAAA" => RData::AAAA(AAAA(next().parse().unwrap())),
        "CNAME" => RData::CNAME(CNAME(name(next()))),
        "SRV" => RData::SRV(SRV::new(
            next().parse().unwrap(),
            next().parse().unwrap(),
            next().parse().unwrap(),
            name(next()),
        )),
        "NAPTR" => {
            let (order, preference) = (next().parse().unwrap(), next().parse().unwrap());
            let mut text = || next().trim_matches('"').as_bytes().to_vec().into_boxed_slice();
            let (flags, services, regexp) = (text(), text(), text());
            RData::NAPTR(NAPTR::new(order, preference, flags, services, regexp, name(next())))
        }
        "SOA" => {
            let minimum = next().parse().unwrap();
            RData::SOA(SOA::new(name("ns"), name("root"), 1, 60, 60, 60, minimum))
        }
        other => panic!("{other}"),
    };
    Record::from_rdata(owner, ttl, data)
}

/// Records from lines.
pub fn records(text: &str) -> Vec<Record> {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).map(record).collect()
}
