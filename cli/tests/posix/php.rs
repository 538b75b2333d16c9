//! PHP-FPM behind nginx: workers under another user that share the master's listener, a connection
//! for each request or kept ones, and PHP's own streams to another server.

use rustix::process::Signal;

use crate::combinations;
use crate::testbed::{Sides, Testbed, assert_same_files, pattern};

combinations!(load, needs ["php-fpm8.2", "nginx", "curl"], in CI [Sides::BOTH]);

/// Replies with the body of the request, in pieces that its buffers do not divide.
const ECHO: &str = r#"<?php
$input = fopen('php://input', 'rb');
while (($piece = fread($input, 70001)) !== '' && $piece !== false) { echo $piece; }
"#;

/// Replies with a page that it fetches itself.
const FETCH: &str = r#"<?php
echo file_get_contents('http://127.0.0.1:8081/small.txt'), 'fetched';
"#;

fn load(testbed: &Testbed) {
    let folder = testbed.path("");
    let pool = format!(
        "[global]\nerror_log = {folder}fpm.log\ndaemonize = no\n\
         [www]\nuser = www-data\ngroup = www-data\nlisten = 127.0.0.1:9000\npm = static\npm.max_children = 4\n"
    );
    let pool = testbed.write("fpm.conf", pool);
    let workers = testbed.serve("php-fpm8.2", &["-n", "-y", &pool], 9000);
    let nginx = testbed.write("nginx.conf", configuration(&folder));
    testbed.write("www/small.txt", "small ");
    testbed.write("www/echo.php", ECHO);
    testbed.write("www/fetch.php", FETCH);
    let server = testbed.serve("nginx", &["-c", &nginx, "-e", &testbed.path("error.log")], 8081);
    let body = testbed.write("body", pattern(testbed.size(5 << 20, 50 << 20)));
    let (upload, pages) = (format!("@{body}"), format!("pages/[1-{}]", testbed.size(50, 2000)));
    for kind in ["once", "kept"] {
        let url = format!("http://127.0.0.1:8081/{kind}/echo.php");
        testbed.client("curl", &["-sS", "--fail", "--data-binary", &upload, "-o", "reply", &url]);
        assert_same_files(body.as_ref(), &testbed.folder.join("reply"));
        // Several at once; each has the worker connect to nginx.
        let url = format!("http://127.0.0.1:8081/{kind}/fetch.php?{pages}");
        let printed = testbed.client_output("curl", &["-sS", "--fail", "-Z", "--parallel-max", "3", &url]);
        assert_eq!(printed.matches("small fetched").count(), testbed.size(50, 2000), "{printed}");
    }
    server.signal(Signal::QUIT);
    server.succeed();
    workers.signal(Signal::QUIT);
    workers.succeed();
    let log = std::fs::read_to_string(testbed.path("fpm.log")).unwrap();
    assert!(!log.contains("WARNING") && !log.contains("ERROR"), "{log}");
}

/// `/once/` opens a connection for each request, `/kept/` keeps them.
fn configuration(folder: &str) -> String {
    let location = |kind: &str, pass: &str| {
        format!(
            "location /{kind}/ {{ fastcgi_pass {pass}; fastcgi_param SCRIPT_FILENAME {folder}www/$page;\n\
             fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_LENGTH $content_length; }}\n"
        )
    };
    let (once, kept) =
        (location("once", "127.0.0.1:9000"), location("kept", "workers; fastcgi_keep_conn on"));
    format!(
        "user nobody nogroup; daemon off; worker_processes 1; pid {folder}nginx.pid;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; client_max_body_size 0; client_body_temp_path {folder}body_temp;\n\
         proxy_temp_path {folder}proxy; fastcgi_temp_path {folder}fastcgi;\n\
         uwsgi_temp_path {folder}uwsgi; scgi_temp_path {folder}scgi;\n\
         upstream workers {{ server 127.0.0.1:9000; keepalive 2; }}\n\
         map $uri $page {{ ~/(?<file>[a-z]+\\.php)$ $file; }}\n\
         server {{ listen 127.0.0.1:8081; root {folder}www; {once}{kept} }} }}\n"
    )
}
