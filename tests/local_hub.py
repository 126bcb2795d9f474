"""A folder in the place of the Hub."""

import shutil
import types


class LocalHub:
    """The calls of the Hub's API that pushing takes, on a folder."""

    def __init__(self, folder):
        self.folder = folder

    def create_repo(self, repo_id, **kwargs):
        return types.SimpleNamespace(repo_id=repo_id)

    def create_commit(self, repo_id, operations, **kwargs):
        for operation in operations:
            path = self.folder / repo_id / operation.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(operation.path_or_fileobj, path)
