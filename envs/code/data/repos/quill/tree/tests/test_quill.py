"""HTML and text."""

import unittest

from quill import outline, to_html, to_text, wrap


class Html(unittest.TestCase):
    """What browsers get."""

    def test_headings_and_paragraphs(self):
        self.assertEqual(to_html("# Title\n\nSome *words*."), "<h1>Title</h1>\n<p>Some <em>words</em>.</p>")

    def test_lists(self):
        self.assertEqual(to_html("- one\n- two"), "<ul>\n<li>one</li>\n<li>two</li>\n</ul>")
        self.assertEqual(to_html("1. one"), "<ol>\n<li>one</li>\n</ol>")

    def test_code(self):
        self.assertEqual(to_html("```py\nx = 1\n```"), '<pre><code class="language-py">x = 1\n</code></pre>')

    def test_marks(self):
        self.assertEqual(to_html("**a** `b` [c](d)"), '<p><strong>a</strong> <code>b</code> <a href="d">c</a></p>')


class Text(unittest.TestCase):
    """What terminals get."""

    def test_wrapping(self):
        self.assertEqual(wrap("one two three", 7), ["one two", "three"])
        self.assertEqual(wrap("", 7), [""])

    def test_blocks(self):
        self.assertEqual(to_text("# Title\n\n- one\n- two"), "Title\n=====\n\n* one\n* two")

    def test_outline(self):
        self.assertEqual(outline("# A\n\n## B c"), [(1, "A", "a"), (2, "B c", "b-c")])


if __name__ == "__main__":
    unittest.main()
