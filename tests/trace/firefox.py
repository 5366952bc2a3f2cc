"""A headless Firefox, driven over Marionette with nothing but Python's standard library."""
import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time


KEYS = {'Tab': '\ue004', 'Enter': '\ue007', 'Escape': '\ue00c', 'ArrowUp': '\ue013', 'ArrowRight': '\ue014', 'ArrowDown': '\ue015'}


def program():
    """The path of a Firefox; None if there is none."""
    return next((path for path in map(shutil.which, ('firefox', 'firefox-esr')) if path), None)


class Firefox:
    """One window. A command that fails, and a script that throws, raise RuntimeError."""

    def __init__(self, path, patience=90):
        self.folder, self.next_id, self.pending = tempfile.mkdtemp(prefix='tenon-firefox-'), 0, b''
        with open(os.path.join(self.folder, 'user.js'), 'w', encoding='utf-8') as file:
            file.write('user_pref("marionette.port", 0);\n')
        self.process = subprocess.Popen([path, '--headless', '--no-remote', '--marionette', '--remote-allow-system-access',
                                         '--profile', self.folder],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until, port = time.monotonic() + patience, os.path.join(self.folder, 'MarionetteActivePort')
        while not os.path.exists(port) or not open(port, encoding='utf-8').read():
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError('Firefox did not start')
            time.sleep(0.1)
        self.socket = socket.create_connection(('127.0.0.1', int(open(port, encoding='utf-8').read())), patience)
        self._message()
        self.call('WebDriver:NewSession')

    def _message(self):
        """The next message: its length in digits, a colon, JSON."""
        while True:
            head, colon, rest = self.pending.partition(b':')
            if colon and len(rest) >= int(head):
                self.pending = rest[int(head):]
                return json.loads(rest[:int(head)])
            more = self.socket.recv(1 << 16)
            if not more:
                raise RuntimeError('Firefox ended')
            self.pending += more

    def call(self, method, **params):
        """A command; its result."""
        self.next_id += 1
        data = json.dumps([0, self.next_id, method, params]).encode()
        self.socket.sendall(b'%d:%s' % (len(data), data))
        _, _, error, result = self._message()
        if error:
            raise RuntimeError(f"{method}: {error['message']}")
        return result['value'] if isinstance(result, dict) and 'value' in result else result

    def open(self, url, width, height):
        self.call('WebDriver:Navigate', url='about:blank') # no page meanwhile gets a new size
        self.call('WebDriver:SetWindowRect', width=width, height=height)
        self.call('WebDriver:Navigate', url=url)

    def js(self, expression):
        """The value of an expression in the page, awaited."""
        return self.call('WebDriver:ExecuteScript', script=f'return (async () => ({expression}))()', args=[])

    def press(self, key, times=1):
        """A key, as the keyboard sends it: a name or one character."""
        value = KEYS.get(key, key)
        strokes = [{'type': kind, 'value': value} for kind in ('keyDown', 'keyUp')] * times
        self.call('WebDriver:PerformActions', actions=[{'type': 'key', 'id': 'keyboard', 'actions': strokes}])

    def complaints(self):
        """What the scripts of pages on this disk threw, and what was refused them, so far."""
        self.call('Marionette:SetContext', value='chrome')
        said = self.call('WebDriver:ExecuteScript', args=[], script="""return Services.console.getMessageArray().filter((m) =>
            m instanceof Ci.nsIScriptError && m.sourceName.startsWith('file:')).map((m) => m.errorMessage)""")
        self.call('Marionette:SetContext', value='content')
        return said

    def picture(self, path):
        """A picture of the page, as PNG."""
        data = self.call('WebDriver:TakeScreenshot', full=False, hash=False)
        with open(path, 'wb') as file:
            file.write(base64.b64decode(data))

    def close(self):
        """Ends the browser and removes what it wrote."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)
