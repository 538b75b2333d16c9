"""Users who put mails into their boxes at the same time, and read them back.

usage: imap.py PORT USERS MAILS
"""

import imaplib
import sys
import threading

PORT, USERS, MAILS = (int(argument) for argument in sys.argv[1:4])
failures = []


def mail(user, number):
    text = f"Subject: {number}\r\n\r\nmail {number} of {user}\r\n".encode()
    return text + (b"%d " % number) * (number * 500) + b"\r\n"


def work(user):
    try:
        box = imaplib.IMAP4("127.0.0.1", PORT)
        box.login(user, "secret")
        for number in range(MAILS):
            answer, _ = box.append("INBOX", None, None, mail(user, number))
            assert answer == "OK", answer
        answer, count = box.select("INBOX")
        assert answer == "OK" and int(count[0]) == MAILS, (answer, count)
        for number in range(MAILS):
            answer, parts = box.fetch(str(number + 1), "(RFC822)")
            assert answer == "OK" and parts[0][1] == mail(user, number), number
        box.logout()
    except BaseException as cause:  # whatever it is, the test has failed
        failures.append(f"{user}: {cause!r}")


threads = [threading.Thread(target=work, args=(f"user{number}",)) for number in range(USERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
print("all right:", USERS * MAILS, "mails")
