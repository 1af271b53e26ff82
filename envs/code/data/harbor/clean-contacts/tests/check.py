"""The cleaned file must be exactly the one that the rules give."""

import subprocess
import sys


def as_agent(*command: str, given: str = "") -> str:
    """Return the output of a command of the agent's user; none if it fails or takes long."""
    words = ["/usr/bin/setpriv", "--reuid=agent", "--regid=agent", "--clear-groups", "--", *command]
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, errors="replace", timeout=20, cwd="/app")
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""

WANT = """name,email,phone,joined
Ada Stone,ada.stone@example.org,04313471,2010-01-01
Bela Rivers,bela.rivers@example.org,05041791,2011-02-08
Cora Moor,cora.moor@example.org,01749779,2012-03-15
Dino Fields,dino.fields@example.org,01966991,2013-04-22
Emma Stone,emma.stone@example.org,06961950,2014-05-01
Finn Rivers,finn.rivers@example.org,06194517,2015-06-08
Gita Moor,gita.moor@example.org,01382408,2016-07-15
Hugo Fields,hugo.fields@example.org,05447851,2017-08-22
Ines Stone,ines.stone@example.org,01714943,2018-09-01
Jona Rivers,jona.rivers@example.org,01927955,2019-10-08
Kira Moor,kira.moor@example.org,01603028,2020-11-15
Luis Fields,luis.fields@example.org,03282013,2021-12-22
Mara Stone,mara.stone@example.org,06907499,2010-01-01
Nils Rivers,nils.rivers@example.org,01504622,2011-02-08
Olga Moor,olga.moor@example.org,01473181,2012-03-15
Paul Fields,paul.fields@example.org,03967867,2013-04-22
"""
sys.exit(as_agent("/bin/cat", "clean.csv") != WANT)
